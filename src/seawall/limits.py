"""Every bound in Seawall, each with its reason.

A queue, buffer, table, frame, name or wait without a bound here is a defect. Sizes are in bytes unless the name says
otherwise; units come last. `testing/limits.py` has the bounds of the simulators, `bench/bounds.py` those of the
measurements.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

# --- records and batches -------------------------------------------------------------------------------------

#: Smallest and extended record headers: [type u8][length u32] and [0xFF][type u16][length u32].
RECORD_HEADER_SIZE = 5
EXTENDED_HEADER_SIZE = 7

#: Decompressed size of a block, which is one payload. Bounds what a compressed batch may expand to, whatever its header
#: claims.
BLOCK_SIZE_MAX = 16 * MIB

#: Largest value in each record form: a block minus the record header. A value within this bound therefore always fits a
#: batch.
RECORD_VALUE_SIZE_MAX = BLOCK_SIZE_MAX - RECORD_HEADER_SIZE
EXTENDED_VALUE_SIZE_MAX = BLOCK_SIZE_MAX - EXTENDED_HEADER_SIZE

#: Records in a version 2 batch. Keeps a reader's offset table per batch (8 bytes per record) at 512 KiB.
BATCH_RECORDS_MAX = 65_536

#: Frame header and batch header: the wire frame is the stored batch.
FRAME_HEADER_SIZE = 44
BATCH_PROLOGUE_SIZE = 52
BATCH_HEADER_SIZE = FRAME_HEADER_SIZE + BATCH_PROLOGUE_SIZE

#: Window of a zstd frame that does not state its size: what the format requires every decoder to accept, and no more.
ZSTD_WINDOW_SIZE_MAX = 8 * MIB

#: Headers of one envelope. The count is a u16 on the wire, but no legitimate record has more than this.
ENVELOPE_HEADERS_MAX = 1_024

# --- wire protocol ---------------------------------------------------------------------------------------------

#: Payload of one frame: the minimum that every peer must accept, and the maximum that two peers may negotiate.
PAYLOAD_SIZE_MIN = 16 * MIB
PAYLOAD_SIZE_MAX = 64 * MIB

#: Version 1 has no negotiation: published clients reject larger payloads, and larger reply frames.
V1_PAYLOAD_SIZE_MAX = 16 * MIB
V1_FETCH_DATA_SIZE_MAX = V1_PAYLOAD_SIZE_MAX - FRAME_HEADER_SIZE - 16

#: Fixed part of FETCH_DATA and DATA, before the first chunk.
FETCH_DATA_HEADER_SIZE = 48

#: FETCH_DATA and DATA carry whole stored batches, so they may exceed the payload bound by these two headers. So may
#: JOBS, which carries a whole job.
FETCH_DATA_EXTRA_SIZE = FETCH_DATA_HEADER_SIZE + BATCH_HEADER_SIZE

#: Strings in control frames: short texts that people type, not data.
TOPIC_NAME_SIZE_MAX = 255
CLIENT_NAME_SIZE_MAX = 255
TOKEN_SIZE_MAX = 4 * KIB
ERROR_TEXT_SIZE_MAX = 4 * KIB
TOPIC_SETTINGS_SIZE_MAX = 16 * KIB

#: Longest long poll: shorter than the usual timeouts of proxies.
FETCH_WAIT_MS_MAX = 30_000

#: Session window: deduplication is exact for client seqs from highest seen − 255 to next expected + 255.
SESSION_WINDOW_BATCHES = 256
SESSION_WINDOW_SIZE = 32 * MIB

#: Default time that a session is kept after its last frame: long enough to repair a job and run it again. Then: expiry
#: checks within that time, sessions that one control batch retires (32 KiB), and sessions that one response lists (100
#: KB of JSON).
SESSION_TTL_MS = 86_400_000
SESSION_CHECKS = 64
SESSIONS_RETIRED_MAX = 4_096
SESSIONS_LISTED_MAX = 1_000
#: Highest client seq that an unknown client may start with, and the most client seqs that a known client may abandon at
#: once. New sessions are numbered above retired ones, so no client may exhaust the numbers.
SESSION_START_SEQ_MAX = 1 << 48
SESSION_ABANDONED_MAX = 1 << 24

#: Jobs that one call claims, acks or extends: the work of a few milliseconds. And the names of workers.
JOBS_MAX = 1_000
JOB_NODE_SIZE_MAX = 128
#: Bounds of a lease, of a delay before the next delivery, and of the wait of one claim.
LEASE_MS_MIN = 100
LEASE_MS_MAX = 86_400_000
NACK_DELAY_MS_MAX = 86_400_000
CLAIM_WAIT_MS_MAX = FETCH_WAIT_MS_MAX
#: Bytes of records in one claim: a claim of large jobs returns fewer, at least one.
CLAIM_SIZE_MAX = 8 * MIB
#: Leases that a server releases when the connection that they are bound to ends, the latest ones: 96 KiB of memory.
BOUND_LEASES_MAX = 4_096

#: Workers of tasks: jobs that one process runs at once by default, how long its leases last without an extension, and
#: how long one claim waits: a worker that is to stop notices it after that.
TASK_THREADS = 8
TASK_LEASE_S = 30.0
TASK_CLAIM_WAIT_S = 1.0
#: How long running tasks may take to finish when a worker stops, less than supervisors wait before they kill; how long
#: an interrupted task may take to end; and the longest grace period and time limit: a month.
TASK_GRACE_S = 20.0
TASK_INTERRUPT_S, TASK_TIME_S_MAX = 1.0, 31 * 86_400.0
#: Pause after a call to the log has failed, and the longest sleep until the next tick: wall clocks are adjusted.
TASK_RETRY_S = 5.0
TASK_TICK_WAIT_S = 30.0
#: Characters of a task's name, of an error that is kept with a dead letter or as a result, and of its traceback.
TASK_NAME_SIZE_MAX = 128
TASK_ERROR_SIZE_MAX = 2_000
TASK_TRACEBACK_SIZE_MAX = 20_000
#: How long results are kept in their topic, and results that a process has read and nobody has asked for yet.
TASK_RESULTS_TTL_S = 86_400.0
TASK_RESULTS_KEPT_MAX = 10_000
#: Pauses before a worker process that has ended is started again: the first, and the longest; and how long a process
#: must have run for the next pause to be the first one again.
WORKER_RESTART_S = 0.5
WORKER_RESTART_S_MAX = 30.0
WORKER_STABLE_S = 60.0
#: Worker processes of one command, and how often a development server looks for changed sources.
WORKER_PROCESSES_MAX = 256
SOURCE_POLL_S = 0.5

#: Keepalive replies per connection in version 1, where published clients reply to every reply.
V1_KEEPALIVE_BURST = 64
V1_KEEPALIVE_PER_SECOND = 10

#: Unacked ingest of one version 1 connection; beyond it the server stops reading. Published clients send a thousand
#: frames and more before they read an ack.
V1_UNACKED_FRAMES_MAX = 16_384
V1_UNACKED_SIZE_MAX = 64 * MIB

#: Bytes of one receive of a decoder: large enough to amortise the call, small enough for one buffer per connection.
RECEIVE_SIZE = 64 * KIB

#: Socket buffer of a local stream, if the system allows as much: one large batch, so that sender and receiver rarely
#: have to alternate.
STREAM_BUFFER_SIZE = 2 * MIB

#: Frames that a decoder takes from one kernel call; it calls again while there are more. 56 bytes each, per connection.
DECODER_ROWS = 128

#: Latest timestamp of an envelope: columns hold it as a signed number, which lasts until the year 2262.
TIMESTAMP_NS_MAX = 2**63 - 1

# --- clocks ----------------------------------------------------------------------------------------------------

#: Events that one millisecond of the hybrid clock can tell apart: the counter fills the nanoseconds below the
#: millisecond.
HLC_COUNTER_LIMIT = 1_000_000

#: Clock drift at which a node is degraded, and at which it is critical.
HLC_DRIFT_DEGRADED_MS = 100
HLC_DRIFT_CRITICAL_MS = 1_000

#: A remote clock further ahead than this is refused, so that one bad clock cannot drag all others forward.
HLC_AHEAD_MS_MAX = 60_000

# --- memory and disk -------------------------------------------------------------------------------------------

#: Unit of cache coherence on the supported machines; fields with different writers never share one.
CACHE_LINE_SIZE = 64

#: Units in which a disk may tear a write.
SECTOR_SIZE = 512
PAGE_SIZE = 4_096

#: Operations in flight in a disk ring: far more than a committer has, few enough to drain at shutdown.
DISK_RING_ENTRIES = 256
DISK_RING_ENTRIES_MAX = 4_096

#: Buffers that one vectored call may take (IOV_MAX on Linux and macOS).
IOVEC_COUNT_MAX = 1_024

# --- control batches, topics and snapshots ---------------------------------------------------------------------

#: One JSON document in a control batch: a topic's configuration before and after a change, with the longest names and
#: tags.
CONTROL_DOCUMENT_SIZE_MAX = 64 * KIB

#: Parts of a compound control batch. Together with the bound on one part it bounds what one position can change: a
#: whole transaction, with what its topics need beside its batches.
COMPOUND_PARTS_MAX = 20_000

#: Seq ranges in one delete of records: 4 KiB if they are close together, 32 KiB at most. A larger delete becomes
#: several control batches, each small enough to be written on a full disk.
DELETE_RANGES_MAX = 2_048

#: State that a sequencer keeps per client (`CLIENT` control batches, snapshots).
CLIENT_ROW_SIZE = 64

#: A tag: a deletion key that people type, not data.
TAG_SIZE_MAX = 256

#: Owner of a cursor: a consumer, a group or a router; as long as a topic name.
CURSOR_OWNER_SIZE_MAX = 255

#: Topics of one data directory: all of them are in memory and in every snapshot. So are cursors (`CURSORS_MAX`).
TOPICS_MAX = 100_000

#: Topics that one commit creates, and the most log bytes that one of them takes.
TOPICS_CREATED_AT_ONCE = 256
TOPIC_CREATE_SIZE_MAX = 4 * KIB
#: Connections over which one client creates topics concurrently, so that the creations share commits.
CREATES_AT_ONCE = 16
#: Cursors of one data directory, over all topics.
CURSORS_MAX = 1_000_000

#: Distinct topic configurations that are cached while a snapshot and the log are read: 1 KiB each.
TOPIC_CONFIGS_CACHED = 256

#: Idempotency keys that one topic remembers; appends with more keys in a window have to wait. And the size of a key,
#: which names a unit of work and is not data.
IDEMPOTENCY_KEYS_MAX = 100_000
IDEMPOTENCY_KEY_SIZE_MAX = 4 * KIB

#: A metadata snapshot: it is read and verified in memory, as a whole.
SNAPSHOT_SIZE_MAX = 1 * GIB

#: Snapshots kept: the newest, and the one to fall back to if it is damaged.
SNAPSHOTS_KEPT = 2

#: Disk space held in reserve in a data directory, so that deletes, which are writes, still work on a full disk.
BALLAST_SIZE = 1 * MIB

#: Bytes of records that an ephemeral topic without a cap of its own holds in memory.
EPHEMERAL_BYTES_MAX = 256 * MIB

#: Bytes that all ephemeral topics hold together, whatever their caps are: this percentage of the memory limit, which
#: together with the peer memory leaves half of the memory to the process; the fixed size if the limit is unknown.
EPHEMERAL_PERCENT = 25
EPHEMERAL_SIZE = 1 * GIB
EPHEMERAL_SIZE_MIN = 1 * MIB

#: A file of the write-ahead log, fully preallocated. The bound is what a reader may have to hold as one epoch.
WAL_FILE_SIZE = 64 * MIB
#: The first files of a log are smaller, so that a directory with little in it takes little space. The first one holds
#: the largest commit; the next has this many times its size, and so on up to the full size.
WAL_FIRST_FILE_SIZE = 4 * MIB
WAL_FILE_GROWTH = 4
#: Bytes of log between checkpoints: recovery after a crash replays that much in about a second.
CHECKPOINT_SIZE = 16 * WAL_FILE_SIZE
WAL_FILE_SIZE_MIN = 64 * KIB
WAL_FILE_SIZE_MAX = 1 * GIB

#: Bytes that the WAL reader reads at once, unless an epoch is larger: many small epochs per call, and few enough bytes
#: to be still in the core's cache when they are verified (2 MiB: a third slower).
WAL_READ_SIZE = 512 * KIB

#: Bytes of a mapped log file that are loaded at once, after a readahead hint to the disk.
WAL_MAPPED_SIZE = 8 * MIB

# --- transactions ------------------------------------------------------------------------------------------------

#: Batches of one transaction (their references, 120 bytes each, fit half a lane), and their bytes: publishing stops
#: while they are copied.
TRANSACTION_BATCHES_MAX = 16_000
TRANSACTION_SIZE_MAX = 4 * GIB
#: Topics that one transaction writes, and cursors that join it: each costs a sync, or an entry of one control batch.
TRANSACTION_TOPICS_MAX = 256
TRANSACTION_CURSORS_MAX = 1_024
#: Queues whose jobs one transaction finishes, each for one worker.
TRANSACTION_ACKS_MAX = 64
#: Owners whose last transaction is remembered, some megabytes with a few topics each; and the size of their names.
TRANSACTION_OWNERS_MAX = 10_000
TRANSACTION_OWNER_SIZE_MAX = 255
#: Bytes of staged batches that are copied at once.
TRANSACTION_PIECE_SIZE = 8 * MIB
#: Default time that staged records are kept for their transaction: longer than it takes to repair a job by hand.
STAGING_TTL_MS = 86_400_000
#: Routers of one data directory, all of them in memory; those in one response; how often a copy may pass routers that
#: allow loops; and what one step copies, unless one batch is larger: commits wait for it, a few milliseconds.
ROUTERS_MAX = 10_000
ROUTERS_LISTED_MAX = 1_000
ROUTER_HOPS_MAX = 16
ROUTER_STEP_SIZE = 1 * MIB
ROUTER_STEP_BATCHES = 256

# --- lanes and sequencing --------------------------------------------------------------------------------------

#: A batch of at least this size is written directly to its segment position and not copied into a lane: copying is
#: faster below, a single write above.
LARGE_BATCH_SIZE = 64 * KIB

#: Skips (abandoned client seqs) that a topic remembers: 100 KiB of memory, 32 bytes each in a snapshot.
SKIPS_KEPT = 1_024

#: Staging buffer of one lane: what one group commit takes from a busy worker; and the overflow that forces a serialized
#: drain.
LANE_BUFFER_SIZE = 4 * MIB
LANE_OVERFLOW_SIZE = 8 * MIB

#: Memory that an overflowing lane allocates at a time.
LANE_OVERFLOW_CHUNK_SIZE = 1 * MIB

#: Lanes of one data directory: one per worker, more than any machine has cores.
LANES_MAX = 1_024

#: Seqs that one durable ceiling lets a topic assign; a busy topic is granted several times that.
CEILING_STEP = 1_048_576

#: Rows that one call of the commit frontier fills; it is called again while there are more batches. 56 bytes each.
ADMISSION_ROWS = 4_096

#: Sessions of one data directory, 144 bytes of memory each; above it the longest idle ones are retired.
CLIENTS_MAX = 1_000_000

#: Publishers whose last 256 results are in memory, 8 KiB each; a duplicate from any other publisher is acked without
#: seqs.
CLIENTS_REMEMBERED = 16_384

#: Bytes that a segment scan reads at once, unless a batch is larger.
SEGMENT_SCAN_SIZE = 1 * MIB

#: Memory of a process for the indexes of sealed segments, 48 bytes for each of 1.4 million batches. Reading an index of
#: 10,000 batches again takes less than a millisecond.
INDEX_CACHE_SIZE = 64 * MIB

#: Segment files that a process keeps open over all topics: one in four of its descriptors, within this minimum and
#: maximum. Reopening one takes some microseconds; beyond a few thousand that no longer matters.
SEGMENT_FILES_PART = 4
SEGMENT_FILES_OPEN_MIN = 32
SEGMENT_FILES_OPEN_MAX = 4_096

#: Descriptors that are neither connections nor segment files: log files, event loops, rings, locks, pipes, and files
#: that are open briefly. A busy server has some fifty; other code may share the process.
OTHER_DESCRIPTORS = 160

#: Descriptors of one connection: its socket, and the duplicate for sending files.
CONNECTION_DESCRIPTORS = 2

#: Descriptors kept open in reserve, to be released when a change in flight needs one and none is left.
DESCRIPTORS_IN_RESERVE = 4

#: Segments of a topic that may be active before earlier ones are sealed: their indexes are all in memory and in
#: snapshots.
ACTIVE_SEGMENTS_MAX = 64

#: Gap between two wanted batches that is read and discarded instead of splitting the read.
READ_GAP_SIZE_MAX = 4 * KIB

#: Bytes that are read and verified in one step: few enough to be in the processor's cache for the next step.
READ_PIECE_SIZE = 512 * KIB

#: Smallest range of a file that is mapped instead of read, where its bytes are copied once more in any case.
READ_MAPPED_SIZE_MIN = 256 * KIB

#: Pool of read buffers: the smallest and the largest buffer that is kept, and the total.
READ_BUFFER_SIZE_MIN = 1 * MIB
READ_BUFFER_SIZE_MAX = 16 * MIB
READ_MEMORY_KEPT = 96 * MIB

#: Threads that fill Arrow tables at once; more would wait for memory bandwidth, not for the processor.
ARROW_THREADS_MAX = 4

#: Disk space that an active segment preallocates: it doubles from the first to the second value, so that a quiet topic
#: costs little and a busy one calls the file system rarely.
SEGMENT_RESERVE_SIZE_MIN = 64 * KIB
SEGMENT_RESERVE_SIZE_MAX = 16 * MIB

# --- fabric: defaults, and allowed ranges (minimum, maximum) ---------------------------------------------------

#: Slots for brokers and replicas in a fabric: their vectors fill pages of a fixed size.
FABRIC_BROKERS_MAX = 32
FABRIC_REPLICAS_MAX = 16

#: Entries of the global order index: batches that are ordered and not yet durable everywhere, and a margin for late
#: readers.
FABRIC_GOI_ENTRIES = 65_536
FABRIC_GOI_RANGE = (128, 1 << 28)

#: Undecided batches of one broker; each takes a slot and, once decided, a result.
FABRIC_PBR_ENTRIES = 4_096
FABRIC_PBR_RANGE = (64, 1 << 19)

#: Both slots of the checkpoint: 64 bytes per client and per topic in each, so that 100,000 clients fit.
FABRIC_CHECKPOINT_SIZE = 16 * MIB
FABRIC_CHECKPOINT_RANGE = (2 * PAGE_SIZE, 1 * GIB)

#: Bytes of undecided batches of one broker. The default is two of the largest blocks, so that a whole fabric with one
#: broker fits into the 64 MiB of shared memory that containers get by default.
FABRIC_BLOG_SIZE = 2 * BLOCK_SIZE_MAX
FABRIC_BLOG_RANGE = (64 * KIB, 1 * TIB)

# --- brokers ---------------------------------------------------------------------------------------------------

#: How long a batch that is still arriving may keep its slot: completion cannot pass it, so no later slot becomes free.
BROKER_RESERVATION_MS = 1_000

#: Batches that arrive in pieces, over all connections of a broker; each may take a whole batch of private memory.
BROKER_UPLOADS_MAX = 64

#: Fill of ring or BLog, in percent, at which a broker enters and leaves the pressure state; far enough apart that it
#: does not flip with every batch.
BROKER_HIGH_WATERMARK_PERCENT = 80
BROKER_LOW_WATERMARK_PERCENT = 50

#: Pressure that lasts this long is reported to publishers: a burst is over earlier, a slow disk is not.
BROKER_PRESSURE_MS = 5_000

#: Acks that a broker collects in one step; it takes another step while there are more.
BROKER_ANSWERS_MAX = 1_024

# --- sequencer of a pod ----------------------------------------------------------------------------------------

#: Slot references in the queue from one collector to one worker: eight drains, so that neither waits for the other.
SEQUENCER_QUEUE_REFS = 32_768

#: Finished ranges of the global order index that wait for the frontier, per worker: one per drain.
SEQUENCER_RANGES = 4_096

#: Such ranges of all workers that cannot be joined yet because an earlier one is still being written. A worker has one
#: in flight at a time; ranges beyond the bound wait in the worker's ring.
GOI_RANGES_WAITING_MAX = 4_096

#: How long the frontier may stall although positions are assigned before it scans the index itself. A range that was
#: never reported is a defect, but a pod that stalls for ever is worse.
GOI_RECONCILE_MS = 5_000

#: Part of the index, in percent, behind the last checkpoint at which the next one is due: entries behind it cannot be
#: overwritten, and workers must be idle before ordering stops (`GOI_HIGH_WATERMARK_PERCENT`).
GOI_CHECKPOINT_PERCENT = 50

#: How long a sequencer counts as alive after its last step.
SEQUENCER_LEASE_MS = 2_000

#: References that a worker takes in one drain, with one reservation for all: enough to make the reservation's cost
#: negligible, and their entries still fit the core's own cache.
SEQUENCER_DRAIN_REFS = 4_096

#: Fill of the global order index, in percent, at which workers stop and resume reserving.
GOI_HIGH_WATERMARK_PERCENT = 90
GOI_LOW_WATERMARK_PERCENT = 80

#: How long a claimed slot may lack its token before a NOP replaces it: far longer than a reservation lives.
STUCK_SLOT_MS = 10_000

#: Batches of order 5 that one worker holds back because an earlier one is missing, and the percentage of that, or of a
#: ring, above which the oldest are returned to their publisher.
HELD_BATCHES_MAX = 10_000
HELD_HIGH_WATERMARK_PERCENT = 80

#: Clients of one worker that may have batches held back at the same time: 2 KiB each.
HELD_PAGES = 1_024

#: How long a session may be silent before the batches that its held ones wait for are abandoned.
GAP_SILENCE_MS = 30_000

#: Publishers whose windows one worker has in memory; the others are in storage.
WORKER_CLIENTS_MAX = 100_000

# --- server ------------------------------------------------------------------------------------------------------

#: Receive buffer that the connections of an event loop share, one at a time: large enough to amortise the call; frames
#: up to a quarter of it need no memory of their own.
SERVER_RECEIVE_SIZE = 1 * MIB

#: Frames that one scan of received bytes finds; it scans again while there are more.
SERVER_FRAME_ROWS = 4_096

#: The publish thread takes connections whose descriptors are below this.
DESCRIPTORS_MAX = 1 << 20

#: Most batches that the publish thread receives before it commits them.
RECEIVED_BATCHES_MAX = 2_048

#: Default port of the binary protocol.
LWP_PORT = 1992

#: Time for an orderly shutdown of a node: less than supervisors wait before they kill.
NODE_DRAIN_S = 25.0
#: Extra time for closing after connections were cut off, so that accepted batches are still written.
CUT_OFF_S = 2.0

#: Addresses that one node listens on: those of a machine's networks.
LISTEN_ADDRESSES_MAX = 16
#: Lowest read rate limit: below it a large batch would exceed every client's timeout.
READ_RATE_MIN = 64 * KIB

#: Percentages of the memory limit: above the first, memory is released early; above the second, writes are held. Both
#: states end a little below their limit, so that they do not flip with every check.
MEMORY_FLUSH_PERCENT = 80
MEMORY_HOLD_PERCENT = 95
MEMORY_MARGIN_PERCENT = 5

#: Interval between memory checks, and the retry delay that publishers get while writes are held.
MEMORY_CHECK_S = 0.2
PRESSURE_RETRY_MS = 1_000

#: How long writes are held before publishers are admitted again one at a time, one receive per check: what they have
#: sent takes memory here until it is stored, so holding all of them for ever might free nothing.
PRESSURE_HOLD_S = 10.0

#: Threads that read large fetch responses: an otherwise idle disk serves a few at once.
READER_THREADS = 4
#: Connections of one listener: 100,000 would fit the memory, but not the usual descriptor limit of a process.
CONNECTIONS_MAX = 10_000

#: Connections above that limit which are open at the same time to receive the refusal; further ones are closed
#: silently.
CONNECTIONS_REFUSED_AT_ONCE = 32

#: How long one frame may take to arrive: this time, plus its size at this rate. Slower peers keep memory that others
#: need.
FRAME_TIME_S = 30.0
FRAME_BYTES_PER_SECOND = 64 * KIB

#: Unsent responses for one peer before the server stops reading from it, and how long the peer may accept none of them.
OUTBOX_SIZE = 8 * MIB
SEND_STALL_S = 60.0

#: How long, and how much, a connection is still read after its last frame was sent: a TCP reset would discard that
#: frame.
LINGER_S = 1.0
LINGER_SIZE = 1 * MIB

#: Silence after which the system probes a peer, the interval of the probes, and how many may stay unanswered: two
#: minutes in all. Published version 1 clients may be silent for as long as they like.
TCP_KEEPALIVE_IDLE_S = 60
TCP_KEEPALIVE_INTERVAL_S = 15
TCP_KEEPALIVE_PROBES = 4

#: How long a TLS handshake may take, and how many an event loop has in flight: each has a descriptor and some 100 KiB.
HANDSHAKE_S = 10.0
HANDSHAKES_MAX = 1_024

#: Silence after which version 2 sends a ping, and after which it closes the connection.
KEEPALIVE_MS = 10_000
IDLE_MS = 30_000
KEEPALIVE_MS_MIN = 100

#: How long a closing connection may take to answer the requests in flight.
DRAIN_S = 5.0
#: How long the exit of the interpreter waits for records in flight: a lost server must not keep a program alive.
EXIT_FLUSH_S = 5.0

#: Bytes of batches in one frame to a reader, except for a single larger batch: enough that looking them up costs little
#: compared with sending them; fewer if the server has to read them. A frame counts its batches with 16 bits, and small
#: batches are limited to fewer bytes.
FETCH_SIZE_MAX = 16 * MIB - 64 * KIB
FETCH_READ_SIZE_MAX = 8 * MIB
FETCH_CHUNKS_MAX = 65_535
FETCH_SMALL_SIZE_MAX = 4 * MIB
#: Smallest response that a reader requests after lost connections: below it a frame costs more than its bytes.
RESPONSE_SIZE_MIN = 4 * KIB
#: Ranges of live seqs and segment names in one FILES response: some 200 KB of JSON, encoded on the event loop.
FILES_RUNS_MAX = 4_096
FILES_SEGMENTS_MAX = 256

#: Smallest range of a file that is sent with sendfile, without passing through this process.
SEND_FILE_SIZE_MIN = 32 * KIB

#: File blocks, 1 MiB each, that are known to fail when they are sent: 100 bytes of memory each, more than the bad
#: blocks of any disk still in use.
UNFIT_BLOCKS_MAX = 1_024

#: Unsent bytes of one peer at which pushes to it pause: enough to keep the network busy meanwhile.
PUSH_UNSENT_SIZE = 1 * MIB
#: Fetch responses that are read concurrently for one connection: enough to keep the disk busy without taking much
#: memory.
FETCHES_AT_ONCE = 4
#: Longest time that a subscriber may ask a short push to wait for more records: longer waits gain nothing.
PUSH_LINGER_US_MAX = 1_000_000

#: Subscriptions of one connection, and requests that it may have in flight beside them.
SUBSCRIPTIONS_MAX = 256
REQUESTS_MAX = 1_024
#: Names and topics of one watch: a request with all of them fits a frame. Memory of one topic; watches a connection.
WATCH_NAMES_MAX, WATCH_TOPICS_MAX = 16_384, 40_000
WATCH_TOPIC_SIZE = 160
WATCHES_MAX = 16
#: Newest changes of topics that watches find: a watch that is further behind looks at all its topics instead.
TOPIC_CHANGES_KEPT = 16_384

#: Bytes that one step of a copy through user space moves, where the kernel cannot copy between two files itself.
COPY_BUFFER_SIZE = 1 * MIB

#: Connections that wait in the kernel to be accepted; Linux cuts it to `net.core.somaxconn` (4,096).
LISTEN_BACKLOG = 1_024

# --- memory that a node holds for its peers --------------------------------------------------------------------

#: Most memory held for peers, in percent of the memory limit: incoming and queued frames, requests, fetch responses,
#: acks. The rest is for the log and the process itself. The fixed size applies if the limit is unknown.
PEER_MEMORY_PERCENT = 25
PEER_MEMORY_SIZE = 256 * MIB
PEER_MEMORY_SIZE_MIN = 8 * MIB

#: Memory held for one connection: an incoming frame of the largest size, and a response that is sent meanwhile.
CONNECTION_MEMORY_SIZE = 64 * MIB

#: Reservations up to this size do not queue behind larger ones; and how much is read at once for a reader while others
#: wait.
MEMORY_SMALL_SIZE = 64 * KIB
CONTENDED_RESPONSE_SIZE = 1 * MIB

#: One receive while memory is under pressure: fits most requests, but no data.
RECEIVE_SHORT_SIZE = 4 * KIB

#: Memory of a request beside its bytes: its task and the objects that it references.
REQUEST_SIZE = 4 * KIB

#: How long one frame may take while others wait for the memory that it has reserved: this time, plus its size at this
#: rate. Any data centre network is fast enough.
CONTENDED_FRAME_TIME_S = 2.0
CONTENDED_FRAME_BYTES_PER_SECOND = 1 * MIB

#: How long a peer may read its responses slower than `FRAME_BYTES_PER_SECOND` while others wait for memory.
CONTENDED_STALL_S = 5.0

#: Largest frame before a peer has presented a required token: HELLO with the longest token and name, and a margin; and
#: how long that may take from the start of the connection.
UNADMITTED_PAYLOAD_SIZE_MAX = 16 * KIB
ADMISSION_S = 2.0

#: Threads that decompress published batches: each takes a whole processor, and other work needs some, too.
CHECKER_THREADS = 2

#: Work that an event loop does itself, about a millisecond each: plain bytes of the compressed batches that arrived
#: together, and compressed payload bytes of version 1, which does not state the plain size. Then the bytes that a
#: checker thread takes at once.
CHECK_INLINE_SIZE = 64 * KIB
DECOMPRESS_INLINE_SIZE = 4 * KIB
CHECK_SIZE = 32 * MIB

#: A callback of an event loop that takes longer is counted: it delayed every other connection of the loop.
SLOW_CALLBACK_NS = 1_000_000

#: Topics of a list that are encoded at once.
TOPICS_LISTED_AT_ONCE = 32

#: Bytes of batches whose tags are looked up before other threads may change the store; and distinct tags that are
#: added, found or dropped before other threads may take the interpreter lock.
TAG_SLICE_SIZE = 1 * MIB
TAG_SLICE_COUNT = 256
