// A Node program: typed arrays, objects, strings, buffers, a worker thread. usage: job.js MIB
const crypto = require('crypto');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const digest = (view) => crypto.createHash('sha256').update(view).digest('hex').slice(0, 32);
const bytesOf = (a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength);

function numbers(n, seed) {
  const a = new Float64Array(n);
  let x = seed >>> 0;
  for (let i = 0; i < n; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    a[i] = x / 4294967296;
  }
  return a;
}

if (isMainThread) {
  const mib = Number(process.argv[2]);
  const a = numbers(mib << 16, 1);
  a.sort();
  console.log('sorted', a.length, digest(bytesOf(a)));
  const objects = [];
  for (let i = 0; i < mib * 2000; i++) {
    objects.push({ id: i, name: `object ${i}`, next: objects[i >> 1] });
  }
  let hash = 0;
  for (const o of objects) {
    hash = (Math.imul(hash, 31) + o.name.length + (o.next ? o.next.id : 0)) | 0;
  }
  console.log('objects', objects.length, hash);
  const text = JSON.stringify(objects.map((o) => [o.id, o.name]));
  console.log('json', text.length, digest(text), JSON.parse(text).length);
  const worker = new Worker(__filename, { workerData: mib });
  worker.on('message', (m) => console.log('worker', m));
  worker.on('exit', (code) => console.log('exit', code, digest(bytesOf(a))));
} else {
  const a = numbers(workerData << 14, 2);
  a.sort();
  parentPort.postMessage(digest(bytesOf(a)));
}
