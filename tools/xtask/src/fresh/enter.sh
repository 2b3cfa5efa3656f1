# Runs a program in the root ROOT, with processes, mounts, cgroups, IPC and a host name of its own.
# usage: sh enter.sh outside ROOT CGROUP BINDS PROGRAM [ARGUMENT]...
#
# BINDS has a line for each file or folder of this machine that is seen there and cannot be written
# to: its path here, a tab, and its path there.
set -eu
exec 2>&1 </dev/null
stage=$1
root=$2
cgroup=$3
binds=$4

# Where memory cgroups can be: version 1 has a hierarchy for them, version 2 has only one.
memory_cgroups() {
    awk '$3 == "cgroup2" || ($3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/) {print $2}' \
        /proc/self/mounts
}

case $stage in
outside) # Still on this machine.
    # Cgroups that are made in the root lie below one, which is removed when the run ends. It holds
    # no process itself: version 2 refuses controllers where one does.
    for mount in $(memory_cgroups); do
        mkdir -p "$mount/$cgroup/init"
        echo $$ >"$mount/$cgroup/cgroup.procs"
    done
    shift
    exec unshare --cgroup sh "$0" between "$@"
    ;;
between) # The cgroup namespace begins where this process is.
    for mount in $(memory_cgroups); do
        echo $$ >"$mount/$cgroup/init/cgroup.procs"
    done
    shift
    exec unshare --mount --propagation private --uts --ipc --pid --fork --kill-child \
        sh "$0" inside "$@"
    ;;
esac

shift 4
hostname fresh
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/sys" "$root/dev"
cgroups=$(awk '$3 == "cgroup" || $3 == "cgroup2" {print $3, $2, $4}' /proc/self/mounts)

mount -t tmpfs -o mode=755,nosuid dev "$root/dev"
for node in null zero full random urandom tty kmsg fuse userfaultfd loop-control loop0 loop1 loop2 \
    loop3 loop4 loop5 loop6 loop7 zram0; do
    [ ! -e "/dev/$node" ] || cp -a "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm" "$root/dev/pts" "$root/dev/mqueue"
mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t mqueue mqueue "$root/dev/mqueue"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"

printf '%s\n' "$binds" | while IFS='	' read -r from to; do
    [ -n "$to" ] || continue
    if [ -d "$from" ]; then
        mkdir -p "$root$to"
    else
        mkdir -p "$root${to%/*}"
        touch "$root$to"
    fi
    mount --bind "$from" "$root$to"
    mount -o remount,bind,ro "$root$to"
done

# The same cgroups that this machine has, at the same places.
mount -t sysfs sysfs "$root/sys"
case "$cgroups" in
*"cgroup /"*) mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" ;;
esac
printf '%s\n' "$cgroups" | while read -r kind at options; do
    [ -n "$at" ] || continue
    mkdir -p "$root$at"
    case "$kind" in
    cgroup2) mount -t cgroup2 cgroup2 "$root$at" ;;
    *)
        controller=$(printf '%s\n' "$options" | tr , '\n' |
            grep -vE '^(rw|ro|relatime|nosuid|nodev|noexec|seclabel)$' | paste -sd,)
        mount -t cgroup -o "$controller" cgroup "$root$at"
        ;;
    esac
done
mount -t proc proc "$root/proc"

# Nothing of this machine's files can be reached after this.
cd "$root"
pivot_root . .
umount -l .
cd /
exec "$@"
