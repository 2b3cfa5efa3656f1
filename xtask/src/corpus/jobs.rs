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
    /// It runs with `--shm`, which only root has on every machine: other users leave it out.
    pub(crate) shm: bool,
}

const fn job(name: &'static str, mib: [u32; 2], command: &'static str) -> Job {
    Job {
        name,
        command,
        input: Input::None,
        mib,
        shm: false,
    }
}

const fn with(input: Input, job: Job) -> Job {
    Job { input, ..job }
}

const fn shared(job: Job) -> Job {
    Job { shm: true, ..job }
}

/// Seconds that one run may take, quick and full.
pub(crate) const LIMIT_S: [u64; 2] = [600, 5400];

pub(crate) const JOBS: &[Job] = &[
    job(
        "numpy-sort",
        [128, 3072],
        "{py} {src}/py/numpy_job.py sort {mib}",
    ),
    job(
        "numpy-matmul",
        [128, 3072],
        "{py} {src}/py/numpy_job.py matmul {mib}",
    ),
    job(
        "numpy-saveload",
        [96, 2048],
        "{py} {src}/py/numpy_job.py saveload {mib}",
    ),
    job(
        "sklearn-fit",
        [96, 2048],
        "{py} {src}/py/sklearn_fit.py {mib}",
    ),
    job(
        "pandas-groupby",
        [96, 1536],
        "{py} {src}/py/pandas_groupby.py {mib}",
    ),
    job(
        "torch-train",
        [96, 2048],
        "{syspy} {src}/py/torch_job.py train {mib}",
    ),
    job(
        "torch-loader",
        [96, 2048],
        "{syspy} {src}/py/torch_job.py loader {mib}",
    ),
    job("mp-fork", [128, 2048], "{py} {src}/py/mp_job.py fork {mib}"),
    job(
        "mp-spawn",
        [128, 2048],
        "{py} {src}/py/mp_job.py spawn {mib}",
    ),
    job("sqlite-memory", [64, 1024], "sh {src}/sh/sqlite.sh {mib}"),
    with(
        Input::Lines,
        job(
            "sort",
            [48, 1024],
            "sort -S {mib}M --parallel=2 -T . -o sorted {in}/lines-{mib}",
        ),
    ),
    with(
        Input::Tree,
        job(
            "tar-zstd",
            [64, 512],
            "sh {src}/sh/archive.sh {in}/tree-{mib} 9",
        ),
    ),
    with(
        Input::CSource,
        job(
            "gcc",
            [100, 2000],
            "gcc -O1 -c {in}/source-{mib}.c -o out.o",
        ),
    ),
    with(
        Input::RustSource,
        job(
            "rustc",
            [25, 400],
            "{rustc} --edition 2024 --crate-type lib --emit obj -O -C codegen-units=2 \
             {in}/source-{mib}.rs -o out.o",
        ),
    ),
    job(
        "redis-bgsave",
        [64, 1024],
        "{syspy} {src}/py/redis_job.py {mib}",
    ),
    job(
        "node",
        [64, 512],
        "node --max-old-space-size=8192 {src}/js/job.js {mib}",
    ),
    job(
        "jvm-serial",
        [128, 1024],
        "java -XX:+UseSerialGC -XX:-UsePerfData -Xmx{mib}000k -Xms{mib}000k -cp {bin} Job {half}",
    ),
    job(
        "jvm-g1",
        [128, 1024],
        "java -XX:+UseG1GC -XX:-UsePerfData -Xmx4g -cp {bin} Job {half}",
    ),
    job(
        "jvm-parallel",
        [128, 1024],
        "java -XX:+UseParallelGC -XX:-UsePerfData -Xmx4g -cp {bin} Job {half}",
    ),
    job(
        "jvm-shenandoah",
        [128, 1024],
        "java -XX:+UseShenandoahGC -XX:-UsePerfData -Xmx4g -cp {bin} Job {half}",
    ),
    // Its heap is shared memory, mapped at three places.
    shared(job(
        "jvm-z",
        [128, 1024],
        "java -XX:+UseZGC -XX:-UsePerfData -Xmx1g -cp {bin} Job {half}",
    )),
    job("go-static", [96, 1024], "{bin}/gojob {mib}"),
    job(
        "sbcl",
        [64, 512],
        "sbcl --noinform --dynamic-space-size 4GB --no-sysinit --no-userinit --disable-debugger \
         --load {src}/lisp/job.lisp --end-toplevel-options {mib}",
    ),
    job(
        "guile",
        [16, 256],
        "guile --no-auto-compile {src}/scheme/job.scm {mib}",
    ),
    // All its memory lies below 2 GiB, at its wish, and is not managed.
    job(
        "chez",
        [64, 512],
        "chezscheme --script {src}/scheme/chez.ss {mib}",
    ),
    job("ghc", [64, 512], "{bin}/hsjob {mib}"),
    job(
        "erlang",
        [64, 512],
        "erl -noshell -pa {bin} -run job main {mib}",
    ),
    job("luajit", [24, 256], "luajit {src}/lua/job.lua {mib}"),
    job("mono", [64, 512], "mono {bin}/Job.exe {mib}"),
    job("ocaml", [64, 512], "{bin}/mljob {mib}"),
    job(
        "wine",
        [96, 512],
        "sh {src}/sh/wine.sh {bin}/winjob.exe {mib}",
    ),
    job("boost-context", [96, 1024], "{bin}/fibers {mib}"),
    job("pth", [96, 1024], "{bin}/pthjob {mib}"),
    shared(job(
        "mpi",
        [128, 1024],
        "mpirun --allow-run-as-root --oversubscribe -np 3 {bin}/mpijob {mib}",
    )),
    job(
        "stress-vm",
        [96, 1024],
        "sh {src}/sh/stress.sh vm {mib} 3000",
    ),
    job(
        "stress-mremap",
        [64, 512],
        "sh {src}/sh/stress.sh mremap {mib} 20",
    ),
    job(
        "stress-malloc",
        [64, 512],
        "sh {src}/sh/stress.sh malloc {mib} 20000",
    ),
    job(
        "stress-bigheap",
        [64, 512],
        "sh {src}/sh/stress.sh bigheap {mib} 60",
    ),
    job(
        "stress-mmap",
        [64, 512],
        "sh {src}/sh/stress.sh mmap {mib} 3",
    ),
    job("c-cow", [96, 1024], "{bin}/cow {mib}"),
    job("c-cow-static", [96, 1024], "{bin}/cow-static {mib}"),
    job("c-closeall", [96, 1024], "{bin}/closeall {mib}"),
    job("c-handlers", [96, 1024], "{bin}/handlers {mib}"),
    job("c-forkthread", [96, 1024], "{bin}/forkthread {mib}"),
    job("c-bigio", [96, 1024], "{bin}/bigio {mib}"),
    job("c-uring", [96, 1024], "{bin}/uring {mib}"),
    job("c-mapmix", [256, 2048], "{bin}/mapmix {mib}"),
    job("c-mapmix-static", [256, 2048], "{bin}/mapmix-static {mib}"),
    job("c-threads", [96, 1024], "{bin}/threads {mib}"),
    job("c-heap", [64, 1024], "{bin}/heap {mib}"),
    job("c-heap-static", [64, 1024], "{bin}/heap-static {mib}"),
    job("c-spawn", [96, 1024], "{bin}/spawn {mib}"),
    job("c-sandbox", [96, 1024], "{bin}/sandbox {mib}"),
    job("c-contexts", [96, 1024], "{bin}/contexts {mib}"),
    job(
        "c-contexts-static",
        [96, 1024],
        "{bin}/contexts-static {mib}",
    ),
    job("c-contexts-asan", [64, 512], "{bin}/contexts-asan {mib}"),
    job("c-ring", [96, 1024], "{bin}/ring {mib}"),
    shared(job("c-ring-shm", [96, 1024], "{bin}/ring {mib}")),
];

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
