#!/bin/sh
# SQLite with its database in memory: rows, an index, a join, deletion, vacuum. usage: sqlite.sh MIB
set -eu
rows=$(($1 * 2600))
sqlite3 :memory: <<SQL
PRAGMA temp_store = memory;
PRAGMA cache_size = -1000000;
CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, name TEXT, pad TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $rows)
  INSERT INTO t SELECT i, (i * 7919) % 100003, 'name ' || i, printf('%0300d', i * 31) FROM n;
CREATE INDEX by_k ON t (k, name);
SELECT count(*), sum(k), sum(length(pad)) FROM t;
SELECT count(*), sum(a.id + b.id) FROM t a JOIN t b ON a.k = b.k WHERE a.id < 20000;
DELETE FROM t WHERE id % 3 = 0;
UPDATE t SET pad = upper(substr(pad, 100)) || name WHERE id % 5 = 0;
SELECT count(*), sum(length(pad)), max(name) FROM t;
SELECT k, count(*) FROM t GROUP BY k ORDER BY 2 DESC, 1 LIMIT 5;
PRAGMA integrity_check;
SQL
