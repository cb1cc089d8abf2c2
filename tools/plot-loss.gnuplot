# Columns of metrics.csv: 1 step, 3 bits_per_byte of the step, 10 held_out_bits_per_byte (empty between evaluations).
set terminal pngcairo size 960,600 noenhanced
set output run.'/loss.png'
set datafile separator ','
set title run
set xlabel 'step'
set ylabel 'bits per byte'
set yrange [:6]
set grid
plot run.'/metrics.csv' skip 1 using 1:3 with lines linecolor rgb '#b0c4de' title 'training, each step', \
     '' skip 1 using 1:10 with linespoints linewidth 2 pointtype 7 linecolor rgb '#c0392b' title 'held out'
