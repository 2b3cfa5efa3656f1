/* Pages come to their states here, calls are made, and what came of them is told: see calls.h. */
static uint32_t digest(uint32_t so_far, const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        so_far = (so_far ^ at[i]) * 16777619;
    return so_far;
}

static uint64_t entry_of(const void *page)
{
    uint64_t entry;
    CHECK(pread(pagemap, &entry, 8, (uintptr_t)page / PAGE * 8) == 8);
    return entry;
}

#define IS_THERE(entry) ((entry) >> 63 & 1)
#define IS_PROTECTED(entry) ((entry) >> 57 & 1)
/* Where what is set aside lies; see the kernel's layout. */
#define SHADOW 0x2a0000000000ul

static int state_of(const unsigned char *page)
{
    uint64_t entry = entry_of(page);
    if (IS_THERE(entry))
        return IS_PROTECTED(entry) ? PROTECTED : RESIDENT;
    return IS_THERE(entry_of(page + SHADOW)) ? ASIDE : OUT;
}

static int all_are(const unsigned char *from, const unsigned char *to, int state)
{
    for (; from < to; from += PAGE)
        if (state_of(from) != state)
            return 0;
    return 1;
}

static void touch(volatile unsigned char *from, volatile unsigned char *to, int write)
{
    for (; from < to; from += PAGE)
        if (write)
            *from = *from;
        else
            (void)*from;
}

static void protect(struct call *call)
{
    if (call->state >= READ_ONLY && call->from)
        CHECK(!mprotect(call->from, call->to - call->from, call->state == READ_ONLY ? PROT_READ : PROT_NONE));
}

/* What comes afterwards looks at the memory. A call may have taken it away or sealed it. */
static void allow(struct call *call)
{
    if (call->state >= READ_ONLY && call->from)
        mprotect(call->from, call->to - call->from, PROT_READ | PROT_WRITE);
}

static int is_ready(struct call *call)
{
    if (is_bare)
        return 1;
    if (call->state == RESIDENT)
        touch(call->from, call->to, 1);
    if (call->state == PROTECTED)
        touch(call->from, call->to, 0);
    return all_are(call->from, call->to, call->state >= ZERO ? OUT : call->state) &&
           (!call->other || all_are(call->other, call->other_to, RESIDENT));
}

/* Addresses differ from run to run. */
static void name_addresses(struct call *call, unsigned char *copy, size_t size)
{
    for (size_t i = 0; i + 8 <= size; i += 8)
        for (int j = 0; j < call->count; j++) {
            uintptr_t at = (uintptr_t)call->areas[j].at, seen;
            memcpy(&seen, copy + i, 8);
            if (seen - (uintptr_t)content < sizeof content) {
                seen -= (uintptr_t)content;
                memcpy(copy + i, &seen, 8);
                break;
            }
            if (seen >= at && seen <= at + call->areas[j].size) {
                seen = seen - at + j * 1000000;
                memcpy(copy + i, &seen, 8);
                break;
            }
        }
}

static void tell_memory(struct call *call, struct result *result)
{
    static unsigned char copy[2 << 20];
    uint32_t all = 2166136261;
    for (int i = 0; i < call->count; i++) {
        struct area *area = &call->areas[i];
        memcpy(copy, area->at, area->size);
        for (int j = 0; j < area->masks; j++)
            memset(copy + area->mask[j].from, 0, area->mask[j].bytes);
        name_addresses(call, copy, area->size);
        uint32_t own = digest(2166136261, copy, area->size);
        all = digest(all, (unsigned char *)&own, 4);
        if (is_verbose) {
            size_t length = strlen(result->text);
            length += snprintf(result->text + length, TEXT_MAX - length, " %s=", area->name);
            for (size_t j = 0; j < area->size && j < 24 && length + 3 < TEXT_MAX; j++)
                length += sprintf(result->text + length, "%02x", copy[j]);
        }
    }
    /* What lies around the subject. */
    for (unsigned char *at = call->from; call->slot && at < call->to; at += PAGE)
        for (int i = 0; i < PAGE; i++)
            if (at + i < call->areas[call->subject].at ||
                at + i >= call->areas[call->subject].at + call->areas[call->subject].size)
                all = digest(all, at + i, 1);
    size_t length = strlen(result->text);
    snprintf(result->text + length, TEXT_MAX - length, " %08x", all);
}

static void on_alarm(int number) { (void)number; }

static void make(struct call *call)
{
    struct result *result = &told->results[call->number];
    told->at = call->number;
    errno = 0;
    const long *a = call->arguments;
    long got;
    if (call->interrupts) {
        /* Again and again: the first may come before the call. */
        struct itimerval soon = {{0, 20000}, {0, 20000}};
        struct sigaction action = {.sa_handler = on_alarm};
        CHECK(!sigaction(SIGALRM, &action, 0) && !setitimer(ITIMER_REAL, &soon, 0));
    } else {
        alarm(CALL_SECONDS);
    }
    if (call->make)
        got = call->make(call);
    else
        got = syscall(call->call, a[0], a[1], a[2], a[3], a[4], a[5]);
    int why = errno;
    alarm(0);
    allow(call);
    if (call->interrupts)
        signal(SIGALRM, SIG_DFL);
    if (call->after) {
        call->kept[7] = got;
        call->after(call);
    }
    if (got == -1)
        snprintf(result->text, TEXT_MAX, "-1 %s%s", strerrorname_np(why) ?: "0", call->said);
    else if (call->is_fd)
        snprintf(result->text, TEXT_MAX, "descriptor%s", call->said);
    else if (call->masks_result)
        snprintf(result->text, TEXT_MAX, "a number%s", call->said);
    else
        snprintf(result->text, TEXT_MAX, "%ld%s", got, call->said);
    /* How much is moved before that is found is nobody's business. */
    if (call->state < READ_ONLY || got != -1 || why != EFAULT)
        tell_memory(call, result);
    if (call->is_fd && got >= 0)
        close(got);
    result->is_done = 1;
    told->at = -1;
}

/* Uses other memory, whose contents need not be brought in before. */
static void use(size_t from, size_t bytes)
{
    CHECK(!madvise(much + from, bytes, MADV_DONTNEED));
    for (size_t i = 0; i < bytes; i += PAGE)
        *(size_t *)(much + from + i) = i + 1;
}

/* All that is not used leaves. What the last call named may stay until the next of its kind. */
static void send_all_away(void)
{
    *(unsigned *)much = 0;
    CHECK(write(-1, much, 1) == -1 && errno == EBADF);
    CHECK(!syscall(SYS_futex, much, FUTEX_TRYLOCK_PI_PRIVATE, 0, 0l, 0l, 0));
    use(0, MUCH);
}

static int is_left(int i, int only) { return !told->results[i].is_done && (only < 0 || i == only); }

static void try_(struct call *call)
{
    told->at = call->number;
    told->steps++;
    if (is_ready(call)) {
        protect(call);
        if (call->before)
            call->before(call);
        make(call);
    }
    told->at = -1;
}

/* Those whose pages are to be set aside: that is where they are for a short time before they leave. */
static void try_aside(int count, int only)
{
    int left = 0;
    for (int i = 0; i < count; i++)
        if (calls[i].state == ASIDE && is_left(i, only)) {
            touch(calls[i].from, calls[i].to, 1);
            left++;
        }
    for (size_t done = 0; left && done < MUCH; done += 16 * PAGE) {
        use(done, 16 * PAGE);
        told->steps++;
        for (int i = 0; i < count; i++)
            if (calls[i].state == ASIDE && is_left(i, only) && state_of(calls[i].from) == ASIDE) {
                try_(&calls[i]);
                left -= !is_left(i, only);
            }
    }
}

/* All that are not to be aside, in an order in which nothing looks like a sequence. What is only read comes first:
   memory that has been seen to be written is brought in for that. */
static void try_others(int count, int only)
{
    static const int order[] = {PROTECTED, OUT, ZERO, READ_ONLY, FORBIDDEN, RESIDENT};
    for (int i = 0; i < count && !is_bare; i++) {
        struct call *call = &calls[(int)((long)i * 7919 % count)];
        if (call->state == PROTECTED && is_left(call->number, only))
            touch(call->from, call->to, 0);
    }
    for (size_t j = 0; j < LENGTH(order); j++)
        for (int i = 0; i < count; i++) {
            struct call *call = &calls[(int)((long)i * 7919 % count)];
            if ((is_bare ? j == 0 : call->state == order[j]) && is_left(call->number, only))
                try_(call);
        }
}

static int is_wanted(struct call *call)
{
    struct area *area = &call->areas[call->subject];
    if (call->has_no_middle || !(wanted_states >> call->state & 1))
        return 0;
    if (area->size > LARGE && (call->state == ASIDE || call->state == PROTECTED))
        return 0;
    if (call->place == SECOND || call->place == FIRST)
        return area->size > 1 && !call->is_whole && !(call->align > 1 && area->size <= 8);
    return call->place != END || area->size % (call->align ?: 1) == 0;
}

/* All cases of a row, or one of them. In a child. */
static void try_row(const struct row *row, int only)
{
    struct call first = {.row = row, .subject = -1};
    row->make(&first);
    size_t all = 0;
    for (int i = 0; i < first.count; i++)
        all += 2 * (first.areas[i].size + HALF) / HALF * HALF + 2 * APART;
    /* As many for each state and place. */
    arena_at = arena = map((all + HALF) * STATES * PLACES + APART);
    arena_at = (unsigned char *)(((uintptr_t)arena + APART - 1) & ~(APART - 1ul));
    arena_end = arena_at + (all + HALF) * STATES * PLACES;
    int count = first.count * STATES * PLACES;
    CHECK(count <= CASES_MAX);
    told->count = count;
    for (int i = 0; i < first.count; i++)
        snprintf(told->names[i], sizeof told->names[i], "%s", first.areas[i].name);
    calls = mmap(0, (count + 1) * sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(calls != MAP_FAILED);
    for (int i = 0; i < count; i++) {
        struct call *call = &calls[i];
        call->row = row;
        call->number = i;
        call->subject = i / (STATES * PLACES);
        call->state = i / PLACES % STATES;
        call->place = i % PLACES;
        if (!is_left(i, only))
            continue;
        told->at = i;
        row->make(call);
        if (!is_wanted(call))
            told->results[i].is_done = 1;
    }
    told->at = -1;
    if (!is_bare)
        much = map(MUCH);
    for (int round = 0; round < ROUNDS; round++) {
        int aside = 0, others = 0;
        for (int i = 0; i < count; i++)
            if (is_left(i, only))
                *(calls[i].state == ASIDE && !is_bare ? &aside : &others) += 1;
        if (!aside && !others)
            return;
        told->steps++;
        if (others) {
            if (!is_bare)
                send_all_away();
            try_others(count, only);
        }
        if (aside)
            try_aside(count, only);
    }
    for (int i = 0; i < count; i++)
        if (is_left(i, only)) {
            strcpy(told->results[i].text, "not reached");
            told->results[i].is_done = 1;
        }
}
