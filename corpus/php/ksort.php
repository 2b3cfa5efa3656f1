<?php
// An array with random strings as its keys, sorted by them. usage: ksort.php MIB
ini_set('memory_limit', '-1');
$count = (int) $argv[1] * 6000;
mt_srand(12345);
$all = [];
for ($i = 0; $i < $count; $i++) {
    $all['key ' . mt_rand() . ' ' . $i] = $i;
}
ksort($all);
$sum = $place = 0;
foreach ($all as $key => $value) {
    $sum = ($sum * 31 + strlen($key) + $value + $place++) % 1000000007;
}
echo 'sorted ', count($all), " $sum\n";
