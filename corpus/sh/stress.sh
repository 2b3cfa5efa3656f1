#!/bin/sh
# stress-ng's memory stressors with verification. What they print holds times and process ids, so it
# goes to the error output; the output is the verdict. usage: stress.sh STRESSOR MIB OPS
set -eu
stressor=$1 mib=$2 ops=$3
options="--$stressor 1 --$stressor-ops $ops"
case $stressor in
vm) options="$options --vm-bytes ${mib}m --vm-method all --vm-keep" ;;
mremap) options="$options --mremap-bytes ${mib}m" ;;
malloc) options="$options --malloc-bytes ${mib}m --malloc-max 256" ;;
bigheap) options="$options --bigheap-growth 4m" ;;
mmap) options="$options --mmap-bytes ${mib}m" ;;
esac
# shellcheck disable=SC2086
stress-ng --verify --seed 1 --temp-path . $options >&2
echo "$stressor verified"
