//! The programs of the corpus.
//!
//! In a command `{mib}` is the size, `{py}` the Python of `.venv`, `{syspy}` the system's (it
//! has PyTorch), `{src}` the folder `corpus`, `{bin}` what was built, `{in}` the generated inputs, `{rustc}`
//! a compiler that any user can run.

/// A generated input, made once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The job makes its own.
    None,
    /// Random lines of text, `{mib}` MiB.
    Lines,
    /// A tree of files, `{mib}` MiB.
    Tree,
    /// A C source with `{mib}` times ten functions.
    CSource,
    /// A Rust source with `{mib}` times ten functions.
    RustSource,
}

/// One program.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) command: &'static str,
    pub(crate) input: Input,
    /// Sizes of the quick corpus and of the full one.
    pub(crate) mib: [u32; 2],
    /// The share of its memory that it gets. One that looks everywhere all the time gets more: with a quarter it only
    /// waits for its disk, under Farpage as with a swap file.
    pub(crate) share: f64,
    /// It runs with `--shm`, which only root has on every machine: other users leave it out.
    pub(crate) shm: bool,
}

const fn new(name: &'static str, mib: [u32; 2], command: &'static str) -> Job {
    Job {
        name,
        command,
        input: Input::None,
        mib,
        share: 0.25,
        shm: false,
    }
}

const fn with(input: Input, job: Job) -> Job {
    Job { input, ..job }
}

const fn everywhere(share: f64, job: Job) -> Job {
    Job { share, ..job }
}

const fn shared(job: Job) -> Job {
    Job { shm: true, ..job }
}

/// Seconds after which a run hangs, quick and full.
pub(crate) const LIMIT_S: [u64; 2] = [1800, 5400];

pub(crate) const JOBS: &[Job] = &[
    new(
        "numpy-sort",
        [128, 3072],
        "{py} {src}/py/numpy_job.py sort {mib}",
    ),
    new(
        "numpy-matmul",
        [128, 3072],
        "{py} {src}/py/numpy_job.py matmul {mib}",
    ),
    new(
        "numpy-saveload",
        [96, 2048],
        "{py} {src}/py/numpy_job.py saveload {mib}",
    ),
    new(
        "sklearn-fit",
        [96, 2048],
        "{py} {src}/py/sklearn_fit.py {mib}",
    ),
    new(
        "pandas-groupby",
        [96, 1536],
        "{py} {src}/py/pandas_groupby.py {mib}",
    ),
    new(
        "torch-train",
        [96, 2048],
        "{syspy} {src}/py/torch_job.py train {mib}",
    ),
    new(
        "torch-loader",
        [96, 2048],
        "{syspy} {src}/py/torch_job.py loader {mib}",
    ),
    new("mp-fork", [128, 2048], "{py} {src}/py/mp_job.py fork {mib}"),
    new(
        "mp-spawn",
        [128, 2048],
        "{py} {src}/py/mp_job.py spawn {mib}",
    ),
    new("sqlite-memory", [64, 1024], "sh {src}/sh/sqlite.sh {mib}"),
    with(
        Input::Lines,
        new(
            "sort",
            [48, 1024],
            "sort -S {mib}M --parallel=2 -T . -o sorted {in}/lines-{mib}",
        ),
    ),
    with(
        Input::Tree,
        new(
            "tar-zstd",
            [64, 512],
            "sh {src}/sh/archive.sh {in}/tree-{mib} 9",
        ),
    ),
    with(
        Input::CSource,
        new(
            "gcc",
            [100, 2000],
            "gcc -O1 -c {in}/source-{mib}.c -o out.o",
        ),
    ),
    with(
        Input::RustSource,
        new(
            "rustc",
            [25, 400],
            "{rustc} --edition 2024 --crate-type lib --emit obj -O -C codegen-units=2 \
             {in}/source-{mib}.rs -o out.o",
        ),
    ),
    new(
        "redis-bgsave",
        [64, 1024],
        "{syspy} {src}/py/redis_job.py {mib}",
    ),
    new(
        "node",
        [64, 512],
        "node --max-old-space-size=8192 {src}/js/job.js {mib}",
    ),
    new(
        "jvm-serial",
        [128, 1024],
        "java -XX:+UseSerialGC -XX:-UsePerfData -Xmx{mib}000k -Xms{mib}000k -cp {bin} Job {half}",
    ),
    new(
        "jvm-g1",
        [128, 1024],
        "java -XX:+UseG1GC -XX:-UsePerfData -Xmx4g -cp {bin} Job {half}",
    ),
    new(
        "jvm-parallel",
        [128, 1024],
        "java -XX:+UseParallelGC -XX:-UsePerfData -Xmx4g -cp {bin} Job {half}",
    ),
    new(
        "jvm-shenandoah",
        [128, 1024],
        "java -XX:+UseShenandoahGC -XX:-UsePerfData -Xmx4g -cp {bin} Job {half}",
    ),
    // Its heap is shared memory, mapped at three places.
    shared(new(
        "jvm-z",
        [128, 1024],
        "java -XX:+UseZGC -XX:-UsePerfData -Xmx1g -cp {bin} Job {half}",
    )),
    new("go-static", [96, 1024], "{bin}/gojob {mib}"),
    new(
        "sbcl",
        [64, 512],
        "sbcl --noinform --dynamic-space-size 4GB --no-sysinit --no-userinit --disable-debugger \
         --load {src}/lisp/job.lisp --end-toplevel-options {mib}",
    ),
    new(
        "guile",
        [16, 256],
        "guile --no-auto-compile {src}/scheme/job.scm {mib}",
    ),
    // All its memory lies below 2 GiB, at its wish, and is not managed.
    new(
        "chez",
        [64, 512],
        "chezscheme --script {src}/scheme/chez.ss {mib}",
    ),
    new("ghc", [64, 512], "{bin}/hsjob {mib}"),
    new(
        "erlang",
        [64, 512],
        "erl -noshell -pa {bin} -run job main {mib}",
    ),
    new("luajit", [24, 256], "luajit {src}/lua/job.lua {mib}"),
    new("mono", [64, 512], "mono {bin}/Job.exe {mib}"),
    new("ocaml", [64, 512], "{bin}/mljob {mib}"),
    new(
        "wine",
        [96, 512],
        "sh {src}/sh/wine.sh {bin}/winjob.exe {mib}",
    ),
    new(
        "chromium",
        [96, 512],
        "sh {src}/sh/browser.sh chromium {src}/js/page.html {mib}",
    ),
    new(
        "firefox",
        [96, 512],
        "sh {src}/sh/browser.sh firefox {src}/js/page.html {mib}",
    ),
    new("boost-context", [96, 1024], "{bin}/fibers {mib}"),
    new("pth", [96, 1024], "{bin}/pthjob {mib}"),
    shared(new(
        "mpi",
        [128, 1024],
        "mpirun --allow-run-as-root --oversubscribe -np 3 {bin}/mpijob {mib}",
    )),
    new(
        "stress-vm",
        [96, 1024],
        "sh {src}/sh/stress.sh vm {mib} 3000",
    ),
    new(
        "stress-mremap",
        [64, 512],
        "sh {src}/sh/stress.sh mremap {mib} 20",
    ),
    new(
        "stress-malloc",
        [64, 512],
        "sh {src}/sh/stress.sh malloc {mib} 20000",
    ),
    new(
        "stress-bigheap",
        [64, 512],
        "sh {src}/sh/stress.sh bigheap {mib} 60",
    ),
    new(
        "stress-mmap",
        [64, 512],
        "sh {src}/sh/stress.sh mmap {mib} 3",
    ),
    new("c-cow", [96, 1024], "{bin}/cow {mib}"),
    new("c-cow-static", [96, 1024], "{bin}/cow-static {mib}"),
    new("c-closeall", [96, 1024], "{bin}/closeall {mib}"),
    new("c-handlers", [96, 1024], "{bin}/handlers {mib}"),
    new("c-forkthread", [96, 1024], "{bin}/forkthread {mib}"),
    new("c-bigio", [96, 1024], "{bin}/bigio {mib}"),
    new("c-uring", [96, 1024], "{bin}/uring {mib}"),
    new("c-mapmix", [256, 2048], "{bin}/mapmix {mib}"),
    new("c-mapmix-static", [256, 2048], "{bin}/mapmix-static {mib}"),
    new("c-threads", [96, 1024], "{bin}/threads {mib}"),
    new("c-heap", [64, 1024], "{bin}/heap {mib}"),
    new("c-heap-static", [64, 1024], "{bin}/heap-static {mib}"),
    new("c-spawn", [96, 1024], "{bin}/spawn {mib}"),
    new("c-sandbox", [96, 1024], "{bin}/sandbox {mib}"),
    new("c-contexts", [96, 1024], "{bin}/contexts {mib}"),
    new(
        "c-contexts-static",
        [96, 1024],
        "{bin}/contexts-static {mib}",
    ),
    new("c-contexts-asan", [64, 512], "{bin}/contexts-asan {mib}"),
    new("c-ring", [96, 1024], "{bin}/ring {mib}"),
    shared(new("c-ring-shm", [96, 1024], "{bin}/ring {mib}")),
    new("py-collect", [96, 1024], "{py} {src}/py/collect.py {mib}"),
    everywhere(
        0.75,
        new("perl-hash", [64, 512], "perl {src}/perl/hash.pl {mib}"),
    ),
    new("php-ksort", [96, 512], "php {src}/php/ksort.php {mib}"),
    everywhere(
        0.75,
        new("lua-tree", [64, 512], "luajit {src}/lua/tree.lua {mib}"),
    ),
    new("c-touch-1", [128, 1024], "{bin}/touch {mib} random 1"),
    new("c-touch-2", [128, 1024], "{bin}/touch {mib} random 2"),
    new("c-touch-4", [128, 1024], "{bin}/touch {mib} random 4"),
    new("c-touch-order", [128, 1024], "{bin}/touch {mib} order 2"),
    new("c-rounds", [96, 1024], "{bin}/rounds {mib}"),
];

/// The one of this name.
pub(crate) fn job(name: &str) -> &'static Job {
    let found = JOBS.iter().find(|job| job.name == name);
    found.unwrap_or_else(|| panic!("the corpus has no '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::JOBS;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = JOBS.iter().map(|j| j.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), JOBS.len());
    }
}
