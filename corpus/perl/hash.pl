# A hash of random words, and its keys sorted by their values. usage: hash.pl MIB
use strict;
use warnings;

my $count = $ARGV[0] * 5500;
my ($state, %seen) = (12345);
for my $i (1 .. $count) {
    $state = ($state * 1103515245 + 12345) % 2147483648;
    $seen{"word $state of $i"} = $state;
}
my ($sum, $place) = (0, 0);
for my $word (sort { $seen{$a} <=> $seen{$b} || $a cmp $b } keys %seen) {
    $sum = ($sum * 31 + length($word) + $seen{$word} + $place++) % 1000000007;
}
print "sorted ", scalar(keys %seen), " $sum\n";
delete @seen{grep { $seen{$_} % 2 } keys %seen};
print "left ", scalar(keys %seen), "\n";
