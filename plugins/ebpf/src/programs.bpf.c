// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Histograms in the kernel: of the whole node, and of each job.
//
// The scheduler keeps the times itself (struct sched_info), and so does the block layer (struct request). The programs read these, so that one
// tracepoint is enough for each, and the sums are those of /proc/<pid>/schedstat and /proc/diskstats.
//
// The structures below have only the fields that are read. The loader corrects their offsets by the kernel's BTF. GPL in the licence, because
// bpf_probe_read_kernel and bpf_ktime_get_ns require it.

#include "bucket.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef long long s64;
typedef _Bool bool;

#define SEC(name) __attribute__((section(name), used))
#define CORE __attribute__((preserve_access_index))
#define exists(field) __builtin_preserve_field_info(field, 2)
#define offset_of(field) __builtin_preserve_field_info(field, 0)
#define map_uint(name, value) int(*name)[value]
#define map_type(name, type) type *name
// Keeps the compiler from joining loads by pointers of different types, which the verifier refuses.
#define opaque(value) __asm__ volatile("" : "+r"(value))
#define atomic_add(place, value) __sync_fetch_and_add(place, value)

char licence[] SEC("license") = "Dual BSD/GPL";

// uapi/linux/bpf.h
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_TASK_STORAGE = 29 };
enum { NO_PREALLOC = 1, STORAGE_CREATE = 1, ANY = 0, NOEXIST = 1 };
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*ktime_get_ns)(void) = (void *)5;
static long (*probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static void *(*task_storage_get)(void *map, void *task, void *value, u64 flags) = (void *)156;
static void *(*current_task)(void) = (void *)158;

struct kernfs_node {
    u64 id;
} CORE;

struct cgroup {
    int level;
    struct kernfs_node *kn;
    // Since Linux 6.1; earlier kernels have the numbers.
    struct cgroup *ancestors[1];
    u64 ancestor_ids[1];
} CORE;

struct cgroup_subsys_state {
    struct cgroup *cgroup;
} CORE;

struct css_set {
    struct cgroup_subsys_state *subsys[1];
    struct cgroup *dfl_cgrp;
} CORE;

struct sched_info {
    u64 run_delay;
    u64 last_queued;
} CORE;

struct rq {
    u64 clock;
} CORE;

struct cfs_rq {
    struct rq *rq;
} CORE;

struct sched_entity {
    struct cfs_rq *cfs_rq;
} CORE;

struct task_struct {
    u32 flags;
    int pid;
    struct sched_entity se;
    struct sched_info sched_info;
    struct css_set *cgroups;
} CORE;

struct bpf_iter__task {
    struct task_struct *task;
} CORE;

struct blkcg {
    struct cgroup_subsys_state css;
} CORE;

struct blkcg_gq {
    struct blkcg *blkcg;
} CORE;

struct bio {
    struct blkcg_gq *bi_blkg;
} CORE;

struct request {
    u32 rq_flags;
    u32 __data_len;
    struct bio *bio;
    u64 start_time_ns;
} CORE;

struct sock_cgroup_data {
    struct cgroup *cgroup;
    // Before Linux 5.15: the pointer, or with the lowest bit a class of version 1.
    u64 val;
} CORE;

struct sock {
    struct sock_cgroup_data sk_cgrp_data;
} CORE;

struct sk_buff {
    char cb[48];
} CORE;

struct tcp_skb_cb {
    u16 tcp_gso_segs;
} CORE;

enum cgroup_subsys_id {
    cpuset_cgrp_id,
    cpuacct_cgrp_id,
    memory_cgrp_id,
    devices_cgrp_id,
    freezer_cgrp_id,
    pids_cgrp_id,
};

// Since Linux 6.11 the number of the flag; before, RQF_FLUSH_SEQ is 1 << 4 (include/linux/blk-mq.h).
enum rqf_flags {
    __RQF_FLUSH_SEQ = 4,
};

// Flag of kernel threads in task_struct (include/linux/sched.h).
#define PF_KTHREAD 0x00200000
// A job's directory is at most so deep. How deep its own directories are does not matter.
#define LEVELS 16

enum { RUN_QUEUE, OFF_CPU, BLOCK, HISTOGRAMS };
enum { UNIFIED, FREEZER, MEMORY, CPUACCT, CPUSET, PIDS, DEVICES };

struct histogram {
    u64 buckets[BUCKETS];
    u64 sum_ns;
};

// What is counted for a job. Slot 0 is the node.
struct totals {
    struct histogram histograms[HISTOGRAMS];
    u64 retransmits;
};

struct losses {
    // Switches to or from a task without a state, for lack of memory.
    u64 tasks;
    // Requests whose job was not noted.
    u64 requests;
    // Times that went backwards.
    u64 clock;
    // Requests without a time of their start.
    u64 untimed;
    // Switches of which only the other half was seen.
    u64 unseen;
};

struct control {
    // Raised after each change of jobs.
    u32 generation;
    u32 hierarchy;
    u32 jobs;
    u32 padding;
};

struct job_slot {
    u32 slot;
    // Tells the jobs of a slot apart.
    u32 epoch;
};

struct task_state {
    // The clock of the run queue when the task left its CPU; 0 if that was not seen.
    u64 left_at;
    u64 run_delay;
    // The cgroup for which the job was looked up, and the result.
    u64 cgroup;
    struct job_slot job;
    u32 generation;
    // Whether run_delay is known.
    u16 seen;
    // Whether the task was seen to begin to run.
    u16 running;
};

struct {
    map_uint(type, MAP_PERCPU_ARRAY);
    map_type(key, u32);
    map_type(value, struct totals);
    map_uint(max_entries, 65);
} totals SEC(".maps");

struct {
    map_uint(type, MAP_PERCPU_ARRAY);
    map_type(key, u32);
    map_type(value, struct losses);
    map_uint(max_entries, 1);
} losses SEC(".maps");

struct {
    map_uint(type, MAP_ARRAY);
    map_type(key, u32);
    map_type(value, struct control);
    map_uint(max_entries, 1);
} control SEC(".maps");

// The epoch of the job in each slot; 0 without one.
struct {
    map_uint(type, MAP_ARRAY);
    map_type(key, u32);
    map_type(value, u32);
    map_uint(max_entries, 65);
} epochs SEC(".maps");

// The slots by the numbers of the jobs' directories.
struct {
    map_uint(type, MAP_HASH);
    map_type(key, u64);
    map_type(value, struct job_slot);
    map_uint(max_entries, 256);
} jobs SEC(".maps");

// Requests of jobs between begin and end. Bounded by the tags of the devices.
struct {
    map_uint(type, MAP_HASH);
    map_type(key, u64);
    map_type(value, struct job_slot);
    map_uint(max_entries, 32768);
} in_flight SEC(".maps");

// The kernel frees a state with its task.
struct {
    map_uint(type, MAP_TASK_STORAGE);
    map_uint(map_flags, NO_PREALLOC);
    map_type(key, int);
    map_type(value, struct task_state);
} tasks SEC(".maps");

INLINE struct losses *lost(void)
{
    u32 zero = 0;
    return map_lookup(&losses, &zero);
}

// A program does not interrupt itself (the kernel refuses that and counts it), and no other program has its histograms: no atomic operation.
INLINE void add_to(u32 slot, u32 kind, u32 bucket, u64 ns)
{
    struct totals *all = map_lookup(&totals, &slot);
    if (!all || bucket >= BUCKETS)
        return;
    all->histograms[kind].buckets[bucket] += 1;
    all->histograms[kind].sum_ns += ns;
}

INLINE void add(u32 slot, u32 kind, u64 ns)
{
    u32 bucket = bucket_of(ns);
    add_to(0, kind, bucket, ns);
    if (slot)
        add_to(slot, kind, bucket, ns);
}

INLINE u64 id_of(struct cgroup *cgroup)
{
    struct kernfs_node *node = 0;
    u64 id = 0;
    if (cgroup)
        probe_read_kernel(&node, sizeof(node), (char *)cgroup + offset_of(cgroup->kn));
    if (node)
        probe_read_kernel(&id, sizeof(id), (char *)node + offset_of(node->id));
    return id;
}

INLINE u64 ancestor(struct cgroup *cgroup, int level)
{
    u64 id = 0;
    if (exists(cgroup->ancestors)) {
        struct cgroup *above = 0;
        probe_read_kernel(&above, sizeof(above), (char *)cgroup + offset_of(cgroup->ancestors) + level * 8);
        id = id_of(above);
    } else {
        probe_read_kernel(&id, sizeof(id), (char *)cgroup + offset_of(cgroup->ancestor_ids) + level * 8);
    }
    return id;
}

// From the root downwards, so that no user hides below many directories. The innermost job counts.
static __attribute__((noinline)) u64 look_up(struct cgroup *cgroup)
{
    struct job_slot job = {};
    int deepest = 0;
    probe_read_kernel(&deepest, sizeof(deepest), (char *)cgroup + offset_of(cgroup->level));
    for (int level = 1; level <= LEVELS; level++) {
        if (level > deepest)
            break;
        u64 id = ancestor(cgroup, level);
        struct job_slot *known = map_lookup(&jobs, &id);
        if (known)
            job = *known;
    }
    return (u64)job.epoch << 32 | job.slot;
}

INLINE struct job_slot job_of_cgroup(struct cgroup *cgroup)
{
    u64 packed = look_up(cgroup);
    struct job_slot job = {.slot = (u32)packed, .epoch = packed >> 32};
    return job;
}

#define CONTROLLER(name)                                                                                    \
    (__builtin_preserve_enum_value(*(enum cgroup_subsys_id *)name, 0)                                       \
         ? (int)__builtin_preserve_enum_value(*(enum cgroup_subsys_id *)name, 1)                            \
         : -1)

INLINE struct cgroup *cgroup_of_version_1(struct css_set *set, u32 hierarchy)
{
    struct cgroup_subsys_state *state = 0;
    struct cgroup *cgroup = 0;
    int controller = -1;
    if (hierarchy == FREEZER)
        controller = CONTROLLER(freezer_cgrp_id);
    else if (hierarchy == MEMORY)
        controller = CONTROLLER(memory_cgrp_id);
    else if (hierarchy == CPUACCT)
        controller = CONTROLLER(cpuacct_cgrp_id);
    else if (hierarchy == CPUSET)
        controller = CONTROLLER(cpuset_cgrp_id);
    else if (hierarchy == PIDS)
        controller = CONTROLLER(pids_cgrp_id);
    else if (hierarchy == DEVICES)
        controller = CONTROLLER(devices_cgrp_id);
    if (controller < 0)
        return 0;
    probe_read_kernel(&state, sizeof(state), (char *)set + offset_of(set->subsys) + controller * 8);
    if (state)
        probe_read_kernel(&cgroup, sizeof(cgroup), (char *)state + offset_of(state->cgroup));
    return cgroup;
}

// The job of a task. The state remembers it until the task moves or jobs change.
INLINE struct job_slot job_of(struct task_struct *task, struct task_state *state)
{
    struct job_slot job = {};
    struct cgroup *cgroup;
    u32 zero = 0;
    u64 id;
    struct control *now = map_lookup(&control, &zero);
    if (!now || !now->jobs)
        return job;
    u32 generation = now->generation;
    struct css_set *set = task->cgroups;
    if (now->hierarchy == UNIFIED) {
        cgroup = set->dfl_cgrp;
        id = cgroup->kn->id;
        opaque(cgroup);
        opaque(id);
    } else {
        cgroup = cgroup_of_version_1(set, now->hierarchy);
        id = id_of(cgroup);
    }
    if (!cgroup)
        return job;
    if (state && state->cgroup == id && state->generation == generation)
        return state->job;
    job = job_of_cgroup(cgroup);
    if (state) {
        state->cgroup = id;
        state->generation = generation;
        state->job = job;
    }
    return job;
}

// The states of the tasks that were there first. A state is never made under the scheduler's lock, where memory cannot be had on each kernel.
SEC("iter/task")
int begin_tasks(struct bpf_iter__task *ctx)
{
    struct task_struct *task = ctx->task;
    struct losses *loss;
    if (task && !task_storage_get(&tasks, task, 0, STORAGE_CREATE)) {
        loss = lost();
        if (loss)
            atomic_add(&loss->tasks, 1);
    }
    return 0;
}

SEC("tp_btf/task_newtask")
int on_new_task(u64 *ctx)
{
    struct task_struct *task = (void *)ctx[0];
    struct task_state *state = task_storage_get(&tasks, task, 0, STORAGE_CREATE);
    struct losses *loss;
    if (state) {
        // Its scheduler information is 0 now.
        state->seen = 1;
        return 0;
    }
    loss = lost();
    if (loss)
        atomic_add(&loss->tasks, 1);
    return 0;
}

INLINE void leave(struct task_struct *task, u64 now)
{
    struct task_state *state = task_storage_get(&tasks, task, 0, 0);
    struct losses *loss;
    if (!state) {
        loss = lost();
        if (loss)
            atomic_add(&loss->tasks, 1);
        return;
    }
    if (state->seen && !state->running) {
        loss = lost();
        if (loss)
            loss->unseen += 1;
    }
    state->left_at = now;
    state->run_delay = task->sched_info.run_delay;
    state->seen = 1;
    state->running = 0;
}

// sched_info_arrive() adds the wait after this tracepoint: run_delay has only what passed before the task moved to this queue.
INLINE void arrive(struct task_struct *task, u64 now)
{
    struct task_state *state = task_storage_get(&tasks, task, 0, 0);
    u64 queued = task->sched_info.last_queued;
    struct losses *loss = 0;
    struct job_slot job;
    if (!state) {
        loss = lost();
        if (loss)
            atomic_add(&loss->tasks, 1);
        return;
    }
    if (state->running) {
        loss = lost();
        if (loss)
            loss->unseen += 1;
        return;
    }
    state->running = 1;
    job = job_of(task, state);
    if (state->seen && queued) {
        u64 wait = now - queued + task->sched_info.run_delay - state->run_delay;
        if ((s64)wait >= 0)
            add(job.slot, RUN_QUEUE, wait);
        else
            loss = lost();
    }
    if (state->left_at) {
        u64 off = now - state->left_at;
        if ((s64)off >= 0)
            add(job.slot, OFF_CPU, off);
        else
            loss = lost();
    }
    if (loss)
        loss->clock += 1;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
    struct task_struct *prev = (void *)ctx[1];
    struct task_struct *next = (void *)ctx[2];
    // The clock by which the scheduler measures.
    u64 now = next->se.cfs_rq->rq->clock;
    if (prev->pid)
        leave(prev, now);
    if (next->pid)
        arrive(next, now);
    return 0;
}

// The job of the task that makes the request; of a kernel thread that writes pages back, the job whose pages they are.
INLINE int begin_io(struct request *request, u64 flags)
{
    struct task_struct *task = current_task();
    struct task_state *state = task_storage_get(&tasks, task, 0, 0);
    struct job_slot job = job_of(task, state);
    u64 key = (u64)request;
    struct losses *loss;
    if (!job.slot && task->flags & PF_KTHREAD) {
        u32 zero = 0;
        struct control *now = map_lookup(&control, &zero);
        if (!now || !now->jobs || now->hierarchy != UNIFIED || !exists(((struct bio *)0)->bi_blkg))
            return 0;
        struct bio *bio = request->bio;
        struct blkcg_gq *group = bio ? bio->bi_blkg : 0;
        struct blkcg *owner = group ? group->blkcg : 0;
        struct cgroup *cgroup = owner ? owner->css.cgroup : 0;
        if (cgroup)
            job = job_of_cgroup(cgroup);
    }
    if (job.slot && map_update(&in_flight, &key, &job, flags) && flags == ANY) {
        loss = lost();
        if (loss)
            atomic_add(&loss->requests, 1);
    }
    return 0;
}

SEC("tp_btf/block_io_start")
int on_io_start(u64 *ctx)
{
    return begin_io((void *)ctx[0], ANY);
}

// Before Linux 6.5: the first of the two that a request passes.
SEC("tp_btf/block_rq_insert")
int on_io_insert(u64 *ctx)
{
    return begin_io((void *)ctx[0], NOEXIST);
}

SEC("tp_btf/block_rq_issue")
int on_io_issue(u64 *ctx)
{
    return begin_io((void *)ctx[0], NOEXIST);
}

// As /proc/diskstats: a step of a flush is none, the request that asked for the flush is one.
SEC("tp_btf/block_rq_complete")
int on_io_complete(u64 *ctx)
{
    struct request *request = (void *)ctx[0];
    u32 bytes = (u32)ctx[2];
    u64 key = (u64)request;
    u32 slot = 0;
    u64 begin = request->start_time_ns;
    u64 time = ktime_get_ns() - begin;
    struct losses *loss;
    u32 step = 1u << (__builtin_preserve_enum_value(*(enum rqf_flags *)__RQF_FLUSH_SEQ, 0)
                          ? __builtin_preserve_enum_value(*(enum rqf_flags *)__RQF_FLUSH_SEQ, 1)
                          : 4);
    if (bytes < request->__data_len || request->rq_flags & step)
        return 0;
    struct job_slot *job = map_lookup(&in_flight, &key);
    if (job) {
        u32 *epoch = map_lookup(&epochs, &job->slot);
        if (epoch && *epoch == job->epoch)
            slot = job->slot;
        map_delete(&in_flight, &key);
    }
    if (begin && (s64)time >= 0) {
        add(slot, BLOCK, time);
        return 0;
    }
    loss = lost();
    if (loss && !begin)
        atomic_add(&loss->untimed, 1);
    else if (loss)
        atomic_add(&loss->clock, 1);
    return 0;
}

INLINE void retransmit(struct sock *sock, u64 segments)
{
    struct cgroup *cgroup = 0;
    struct totals *all;
    u32 zero = 0, slot = 0;
    struct control *now = map_lookup(&control, &zero);
    if (now && now->jobs && now->hierarchy == UNIFIED) {
        if (exists(sock->sk_cgrp_data.cgroup)) {
            cgroup = sock->sk_cgrp_data.cgroup;
        } else {
            u64 value = sock->sk_cgrp_data.val;
            if (!(value & 1))
                cgroup = (void *)(value & ~3ULL);
        }
        if (cgroup)
            slot = job_of_cgroup(cgroup).slot;
    }
    all = map_lookup(&totals, &zero);
    if (all)
        atomic_add(&all->retransmits, segments);
    if (!slot)
        return;
    all = map_lookup(&totals, &slot);
    if (all)
        atomic_add(&all->retransmits, segments);
}

// As TCP_MIB_RETRANSSEGS: a packet that the adapter cuts is several segments.
SEC("tp_btf/tcp_retransmit_skb")
int on_retransmit(u64 *ctx)
{
    struct sk_buff *packet = (void *)ctx[1];
    u16 segments = 1;
    struct tcp_skb_cb *tcp = 0;
    if (exists(tcp->tcp_gso_segs))
        probe_read_kernel(&segments, sizeof(segments),
                          (char *)packet + offset_of(packet->cb) + offset_of(tcp->tcp_gso_segs));
    retransmit((void *)ctx[0], segments ? segments : 1);
    return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int on_retransmit_synack(u64 *ctx)
{
    retransmit((void *)ctx[0], 1);
    return 0;
}
