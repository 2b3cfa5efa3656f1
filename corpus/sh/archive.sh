#!/bin/sh
# tar of a tree, zstd of the archive with a long window, and back. usage: archive.sh INPUT LEVEL
set -eu
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf tree.tar -C "$1" .
zstd -q "-$2" --long=27 -T1 --no-progress tree.tar -o tree.zst
zstd -q -d --long=27 tree.zst -o again.tar
cmp tree.tar again.tar
mkdir out
tar -xf again.tar -C out
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf third.tar -C out .
cmp tree.tar third.tar
rm -r out again.tar third.tar tree.tar
echo same
