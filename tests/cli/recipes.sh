#!/bin/sh
# Every recipe of examples/recipes is counted by --dry-run without data, and has the parameters that its source states or that
# follow from its shape by hand.
#
# Stated: delta_net_340m, pgdn, kda (PDN configs), qdelta (QD configs). By hand, d the width, f that of the MLP:
#   delta_net       4 d^2 + 3 4 d + heads d + 128 + 3 d f + 2 d a layer; 24 of them, a table of 32,000 d, and d
#   gdn, gated      5 d^2 + 3 4 d + 2 heads d + 2 heads + 128 + 3 d f + 2 d a layer
#   transformer     5 d^2 + 2 128 + 3 d f + 2 d a layer
#   gdn_hybrid      18 layers of gdn, 6 of the transformer
# eda_2.5b and eda_25b_a2.8b are placeholders near the stated sizes; eda_hybrid_340m is held to what it was when it was written.
. "$(dirname "$0")/expect.sh"

cat >counts <<'COUNTS'
delta_net_340m 341594112
delta_net_1b 994407168
pgdn_340m 342184896
pgdn_1b 996215184
kda_340m 354226368
kda_1b 995186832
qdelta_340m 380017148
qdelta_1.3b 1387606780
gdn_hybrid_340m 366785568
eda_hybrid_340m 372112272
transformer_340m 366271488
eda_2.5b 2648358720
eda_25b_a2.8b 24602686240
gdn_25m 27686320
gdn_english 367743360
kda_english 355012800
COUNTS
while read -r name count; do
    expect 0 "parameters: $count" "$deltarule" train --config "$root/examples/recipes/$name.json" --dry-run
    grep -q 'not measured without a corpus' stdout || fail "$name does not say that no time was measured"
    awk '/^memory:/ {all = $2} /^  .* MB$/ {sum += $(NF - 1)} END {exit !(sum > 0.999 * all && sum < 1.001 * all)}' stdout ||
        fail "the parts of the memory of $name are not the whole"
    awk '/^parameters:/ {all = $2} $3 ~ /%$/ {sum += $2} END {exit sum != all}' stdout ||
        fail "the kinds of parameters of $name are not the whole"
done <counts
expect 0 'active parameters: 2758751008 a token' "$deltarule" train --config "$root/examples/recipes/eda_25b_a2.8b.json" --dry-run
expect 0 'steps: 30000 of 524288 tokens' "$deltarule" train --config "$root/examples/recipes/kda_340m.json" --dry-run
expect 0 'steps: 7 of 524288 tokens' "$deltarule" train --config "$root/examples/recipes/kda_340m.json" --dry-run --steps 7
for name in eda_2.5b eda_25b_a2.8b; do
    grep -q 'PLACEHOLDER' "$root/examples/recipes/$name.json" || fail "$name does not say that its shape is a placeholder"
done
for file in "$root"/examples/recipes/*.json; do
    name=$(basename "$file" .json)
    [ "$name" = continue_8x ] || grep -q "^$name " counts || fail "no count is known of $name"
done

# A smaller level keeps less; a backend with no operation of a network, or no choice of a type, says so.
level() { "$deltarule" train --config "$root/examples/recipes/gdn_25m.json" --dry-run --keep-level "$1" | awk '/^  a step/ {print int($3)}'; }
[ "$(level 4)" -lt "$(($(level 0) / 2))" ] || fail 'keep_level 4 needs as much as 0'
expect 2 'backend "cpu" has no dtype to choose' "$deltarule" train --config "$root/examples/recipes/gdn_25m.json" --dry-run --dtype bf16
expect 2 'tokens_per_step is 100' "$deltarule" train --config "$root/examples/recipes/kda_340m.json" --dry-run --tokens-per-step 100
expect 2 'one behind the other' "$deltarule" train --config "$root/examples/recipes/gdn_25m.json" --dry-run --schedule wsd --decay 1

# From 64 tokens to 512 by the recipe, at sizes of a test.
make_corpus
expect 0 'model: short' "$deltarule" train --corpus corpus --hidden 32 --layers 1 --heads 2 --seq-len 64 --batch 2 --steps 4 --out short
expect 0 'model: long' "$deltarule" train --config "$root/examples/recipes/continue_8x.json" --init short --corpus corpus --seq-len 512 \
    --tokens-per-step 1024 --accumulate 2 --steps 3 --warmup-steps 1 --evaluate-every 0 --out long
cmp short/config.json long/config.json || fail 'a longer context changed the model'
