# Columns of the data: 1 peer, 2 work, 3 threads, 4 tokens, 5 heads, 6 their seconds, 7 our seconds, 8 ratio.
set terminal pngcairo size 960,600 noenhanced
set output picture
set datafile separator ','
set logscale xy
set xrange [48:5500]
set xlabel 'tokens'
set ylabel 'milliseconds'
set xtics (64, 128, 256, 512, 1024, 2048, 4096)
set grid
set key top left
rows(peer, work) = sprintf("< awk -F, '$1 == \"%s\" && $2 == \"%s\"' %s", peer, work, data)
torch = 'transformers torch_chunk_gated_delta_rule'
plot rows('ggml gated_delta_net gdn', 'forward') using 4:(1e3*$6) with linespoints pt 5 lc rgb '#7f8c8d' title 'ggml gated_delta_net, forward', \
     rows(torch, 'forward') using 4:(1e3*$6) with linespoints pt 4 lc rgb '#2980b9' title 'transformers, forward', \
     rows(torch, 'forward') using 4:(1e3*$7) with linespoints pt 7 lw 2 lc rgb '#c0392b' title 'deltarule, forward', \
     rows(torch, 'forward + backward') using 4:(1e3*$6) with linespoints pt 4 dt 2 lc rgb '#2980b9' title 'transformers, forward + backward', \
     rows(torch, 'forward + backward') using 4:(1e3*$7) with linespoints pt 7 dt 2 lw 2 lc rgb '#c0392b' title 'deltarule, forward + backward'
