/* Lists of sizes. */
#include "data/sizes.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Digits at *text, from 1 to most; *text is moved behind them. false: none, or out of range. */
static bool read_count(const char **text, int64_t most, int64_t *count) {
    int64_t value = 0;
    const char *at = *text;
    for (; *at >= '0' && *at <= '9'; at++) {
        value = 10 * value + (*at - '0');
        if (value > most) return false;
    }
    if (at == *text || value < 1) return false;
    *text = at;
    *count = value;
    return true;
}

static void set_name(dr_size_range *range, bool with_pairs) {
    int used = snprintf(range->name, sizeof range->name, "%lld", (long long)range->least);
    if (range->most > range->least)
        used += snprintf(range->name + used, sizeof range->name - (size_t)used, "-%lld", (long long)range->most);
    if (with_pairs) snprintf(range->name + used, sizeof range->name - (size_t)used, "/%lld", (long long)range->pairs);
}

static bool read_item(const char **text, int64_t pairs, bool weights, dr_size_range *range) {
    *range = (dr_size_range){.pairs = pairs, .weight = 1};
    if (!read_count(text, DR_LONGEST_EXAMPLE, &range->least)) return false;
    range->most = range->least;
    if (**text == '-' && (++*text, !read_count(text, DR_LONGEST_EXAMPLE, &range->most))) return false;
    if (**text == '/' && pairs > 0 && (++*text, !read_count(text, DR_MOST_PAIRS, &range->pairs))) return false;
    if (**text == '*' && weights && (++*text, !read_count(text, 1000000, &range->weight))) return false;
    set_name(range, pairs > 0);
    return range->most >= range->least && (**text == ' ' || **text == '\0');
}

dr_status dr_sizes_parse(const char *setting, const char *text, int64_t pairs, bool weights, dr_sizes *sizes) {
    const char *at = text + strspn(text, " ");
    sizes->count = 0;
    while (*at) {
        const char *item = at;
        if (sizes->count == DR_MOST_SIZES)
            return dr_fail(DR_ERROR_ARGUMENT, "%s is \"%s\": it may have %d items and no more", setting, text, DR_MOST_SIZES);
        if (!read_item(&at, pairs, weights, &sizes->at[sizes->count]))
            return dr_fail(DR_ERROR_ARGUMENT,
                           "%s is \"%s\": \"%.*s\" is not a length such as 64, or a range such as 3-40%s%s; items stand apart "
                           "by blanks",
                           setting, text, (int)strcspn(item, " "), item, pairs > 0 ? ", with /PAIRS after it or not" : "",
                           weights ? ", with *WEIGHT after it or not" : "");
        sizes->count++;
        at += strspn(at, " ");
    }
    if (sizes->count > 0) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s is empty: it must name a length at least", setting);
}

dr_status dr_sizes_add(dr_sizes *sizes, int64_t length, int64_t pairs) {
    if (sizes->count == DR_MOST_SIZES)
        return dr_fail(DR_ERROR_ARGUMENT, "examples may have %d different sizes and no more", DR_MOST_SIZES);
    dr_size_range *range = &sizes->at[sizes->count++];
    *range = (dr_size_range){.least = length, .most = length, .pairs = pairs, .weight = 1};
    set_name(range, pairs > 0);
    return DR_OK;
}

dr_example_size dr_sizes_largest(const dr_sizes *one, const dr_sizes *other) {
    dr_example_size largest = {0};
    for (const dr_sizes *sizes = one; sizes; sizes = sizes == one ? other : NULL) {
        for (int i = 0; i < sizes->count; i++) {
            if (sizes->at[i].most > largest.length) largest.length = sizes->at[i].most;
            if (sizes->at[i].pairs > largest.pairs) largest.pairs = sizes->at[i].pairs;
        }
    }
    return largest;
}

static dr_status check_size(const dr_generator *generator, dr_example_size size) {
    return generator->kind->check ? generator->kind->check(generator, size) : DR_OK;
}

static dr_status fit_range(const dr_generator *generator, const char *setting, dr_size_range *range) {
    const dr_generator_kind *kind = generator->kind;
    long long shortest = kind->shortest, step = kind->step;
    if (range->least == range->most) DR_TRY(check_size(generator, dr_size_most(range)));
    int64_t least = range->least + (step - (range->least - shortest) % step) % step;
    if (range->least < shortest || (kind->longest > 0 && range->most > kind->longest) || least > range->most) {
        char lengths[96] = "", end[48] = "";
        snprintf(lengths, sizeof lengths, step > 1 ? "%lld, %lld and so on" : "from %lld on", shortest, shortest + step);
        if (kind->longest > 0) snprintf(end, sizeof end, " up to %lld", (long long)kind->longest);
        return dr_fail(DR_ERROR_ARGUMENT, "%s has %s: examples of %s have lengths %s%s", setting, range->name, kind->name,
                       lengths, end);
    }
    range->least = least;
    range->most -= (range->most - least) % step;
    DR_TRY(check_size(generator, (dr_example_size){range->least, range->pairs}));
    return check_size(generator, dr_size_most(range));
}

dr_status dr_sizes_fit(const dr_generator *generator, const char *setting, dr_sizes *sizes) {
    for (int i = 0; i < sizes->count; i++) DR_TRY(fit_range(generator, setting, &sizes->at[i]));
    return DR_OK;
}

dr_example_size dr_size_draw(const dr_size_range *range, const dr_generator_kind *kind, dr_random *random) {
    dr_example_size size = {range->least, range->pairs};
    int64_t more = (range->most - range->least) / kind->step;
    if (more > 0) size.length += kind->step * (int64_t)dr_random_below(random, (uint64_t)more + 1);
    return size;
}

dr_example_size dr_sizes_draw(const dr_sizes *sizes, const dr_generator_kind *kind, dr_random *random) {
    int64_t total = 0;
    int i = 0;
    for (int item = 0; item < sizes->count; item++) total += sizes->at[item].weight;
    int64_t point = total > 1 ? (int64_t)dr_random_below(random, (uint64_t)total) : 0;
    while (point >= sizes->at[i].weight) point -= sizes->at[i++].weight;
    return dr_size_draw(&sizes->at[i], kind, random);
}
