#!/bin/sh
# Records the traces that `farpage-sim --policies` compares. Needs a C compiler, sqlite3, PHP, and a
# Python with NumPy and pandas (PYTHON); root, for userfaultfd.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PYTHON=${PYTHON:-python3}
cc -O2 -Wall -shared -fPIC -fno-builtin -o "$work/recorder.so" "$here/recorder.c" -lpthread
export OPENBLAS_NUM_THREADS=1 PYTHONMALLOC=malloc NUMPY_MADVISE_HUGEPAGE=0 PYTHONHASHSEED=0

record() {
	name=$1
	shift
	echo "$name" >&2
	timeout 300 taskset -c 0 env LD_PRELOAD="$work/recorder.so" TRACE_OUT="$out/$name.trace" \
		"$@" >/dev/null
}

begin='import ctypes; ctypes.CDLL(None).recorder_begin()'
# Without the end of the interpreter.
end='import os; os._exit(0)'

record numpy-sort "$PYTHON" -c "import numpy as np
$begin
a = np.random.default_rng(1).random(4 << 20)
a.sort()
$end"
record numpy-passes "$PYTHON" -c "import numpy as np
$begin
a = np.random.default_rng(1).random(8 << 20)
for _ in range(3):
    a *= 1.0001
    a += 1.0
print(a.sum())
$end"
record numpy-matmul "$PYTHON" -c "import numpy as np
$begin
r = np.random.default_rng(1)
a, b = r.random((1200, 1200)), r.random((1200, 1200))
print((a @ b).sum())
$end"
record numpy-random "$PYTHON" -c "import numpy as np
$begin
r = np.random.default_rng(1)
a = np.zeros(4 << 20)
a += 1.0
rows = r.integers(0, len(a) // 512, 30000)
print(sum(a[row * 512] for row in rows))
$end"
record pandas-groupby "$PYTHON" -c "import numpy as np, pandas as pd
$begin
r = np.random.default_rng(1)
n = 60_000
d = pd.DataFrame({'k': r.integers(0, 5000, n), 'v': r.random(n), 'w': r.random(n)})
for _ in range(2):
    g = d.groupby('k').agg({'v': 'mean', 'w': 'sum'})
m = d.merge(g, left_on='k', right_index=True)
print(m.sort_values('v_x').head())
$end"
record hash "$PYTHON" -c "import random
r = random.Random(1)
store = {b'key:%d' % i: b'x' * r.randrange(100, 500) for i in range(50_000)}
keys = list(store)
$begin
for i in range(20_000):
    k = keys[int(len(keys) * r.random() ** 4)]
    if i % 10 == 0:
        store[k] = b'y' * 300
    else:
        store[k][0]
$end"
cat > "$work/sqlite.sql" <<'EOF'
create table t(id integer primary key, k integer, s text);
with recursive c(i) as (select 1 union all select i + 1 from c where i < 100000)
insert into t select i, (i * 7919) % 100000, hex(zeroblob(40)) from c;
create index tk on t(k);
select count(*) from t a join t b on a.k = b.id where a.id % 9 = 0;
select sum(length(s)) from t where k between 1000 and 20000;
update t set s = 'z' where k % 50 = 0;
select k % 100, count(*) from t group by 1 order by 2;
EOF
record sqlite sqlite3 :memory: ".read $work/sqlite.sql"
"$PYTHON" -c "import random
r = random.Random(1)
for _ in range(120_000):
    print('%016x some words to sort by' % r.getrandbits(64))" >"$work/lines"
record sort sort -S 200M --parallel=1 "$work/lines"
"$PYTHON" -c "for i in range(150):
    print(f'int g{i}[16]; int f{i}(int a, int b) {{ int s = 0;')
    print(f'for (int i = 0; i < a; i++) {{ if (i % {i + 2}) s += g{max(i - 1, 0)}[i & 15] * b;')
    print(f' else g{i}[i & 7] ^= s - {i}; }} return s + f{max(i - 1, 0)}(b, s); }}')" \
	>"$work/big.c"
cat > "$work/ksort.php" <<'EOF'
<?php
mt_srand(1);
$a = [];
for ($i = 0; $i < 250000; $i++) $a[md5((string)mt_rand())] = $i;
ksort($a);
$s = 0; foreach ($a as $k => $v) $s = ($s * 31 + $v) % 1000003;
echo $s, "\n";
EOF
# It goes over so much so often that all returns would be 10 MB.
TRACE_WINDOW=4096 record php-ksort php "$work/ksort.php"
record gcc "$(gcc -print-prog-name=cc1)" -quiet -O2 "$work/big.c" -o /dev/null
ls -l "$out"/*.trace >&2
