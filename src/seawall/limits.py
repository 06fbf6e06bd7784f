"""Every bound in Seawall, each with its reason.

A queue, buffer, table, frame, name or wait that is not bounded here is a defect. Sizes are in bytes unless the
name says otherwise; units come last. `testing/limits.py` has those of simulators, `bench/bounds.py` of measurements.
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

#: A block when decompressed: one payload. Bounds what a compressed batch may grow to, whatever its bytes claim.
BLOCK_SIZE_MAX = 16 * MIB

#: One value of each record form: what its header leaves of a block. So a value within its bound always fits a batch.
RECORD_VALUE_SIZE_MAX = BLOCK_SIZE_MAX - RECORD_HEADER_SIZE
EXTENDED_VALUE_SIZE_MAX = BLOCK_SIZE_MAX - EXTENDED_HEADER_SIZE

#: Records in a version 2 batch. Keeps the per-batch offset table of a reader (8 bytes a record) at 512 KiB.
BATCH_RECORDS_MAX = 65_536

#: Frame header and batch header: the wire frame is the stored batch.
FRAME_HEADER_SIZE = 44
BATCH_PROLOGUE_SIZE = 52
BATCH_HEADER_SIZE = FRAME_HEADER_SIZE + BATCH_PROLOGUE_SIZE

#: Window of a zstd frame that does not state its size: what the format asks every decoder to accept, and no more.
ZSTD_WINDOW_SIZE_MAX = 8 * MIB

#: Headers of one envelope: the count is a u16 on the wire, but no honest record has more than this.
ENVELOPE_HEADERS_MAX = 1_024

# --- wire protocol ---------------------------------------------------------------------------------------------

#: Payload of one frame: the floor every peer must accept, and the most two peers may agree on.
PAYLOAD_SIZE_MIN = 16 * MIB
PAYLOAD_SIZE_MAX = 64 * MIB

#: Version 1 has no negotiation: published clients stop at this payload, and at this whole reply frame.
V1_PAYLOAD_SIZE_MAX = 16 * MIB
V1_FETCH_DATA_SIZE_MAX = V1_PAYLOAD_SIZE_MAX - FRAME_HEADER_SIZE - 16

#: Fixed part of FETCH_DATA and DATA ahead of the first chunk.
FETCH_DATA_HEADER_SIZE = 48

#: FETCH_DATA and DATA carry whole stored batches, so they may exceed the payload bound by these two headers.
FETCH_DATA_EXTRA_SIZE = FETCH_DATA_HEADER_SIZE + BATCH_HEADER_SIZE

#: Strings inside control frames: what a person types, not data.
TOPIC_NAME_SIZE_MAX = 255
CLIENT_NAME_SIZE_MAX = 255
TOKEN_SIZE_MAX = 4 * KIB
ERROR_TEXT_SIZE_MAX = 4 * KIB
TOPIC_SETTINGS_SIZE_MAX = 16 * KIB

#: A long poll may not outlive the patience of proxies and of people.
FETCH_WAIT_MS_MAX = 30_000

#: Session window: client seqs from highest seen − 255 up to next expected + 255 are told apart exactly.
SESSION_WINDOW_BATCHES = 256
SESSION_WINDOW_SIZE = 32 * MIB

#: How long a session is remembered after its last frame, unless configured: a job is repaired and run again by then.
#: Looks within that time; sessions that one control batch retires (32 KiB), and that one answer lists (100 KB of JSON).
SESSION_TTL_MS = 86_400_000
SESSION_LOOKS = 64
SESSIONS_RETIRED_MAX = 4_096
SESSIONS_LISTED_MAX = 1_000
#: The highest client seq that an unknown client may begin with, and the most that a known one gives up at once: new
#: sessions are numbered above retired ones, and no client may use up the numbers of all.
SESSION_START_SEQ_MAX = 1 << 48
SESSION_ABANDONED_MAX = 1 << 24

#: Keepalive answers per connection on version 1, where a published client answers every answer.
V1_KEEPALIVE_BURST = 64
V1_KEEPALIVE_PER_SECOND = 10

#: Ingest of one version 1 connection that is not acked; what comes behind it is not read. Published clients send a
#: thousand frames and more before they look for an ack.
V1_UNACKED_FRAMES_MAX = 16_384
V1_UNACKED_SIZE_MAX = 64 * MIB

#: One receive of a decoder: large enough to amortise the call, small enough to have one for each connection.
RECEIVE_SIZE = 64 * KIB

#: What a stream within the machine may hold on its way, if the system allows as much: a large batch, so that sender and
#: receiver take turns rarely.
STREAM_BUFFER_SIZE = 2 * MIB

#: Frames a decoder takes from one kernel call; it calls again while there are more. 56 bytes each, for each connection.
DECODER_ROWS = 128

#: Latest timestamp of an envelope: columns hold it as a signed number, which lasts until the year 2262.
TIMESTAMP_NS_MAX = 2**63 - 1

# --- clocks ----------------------------------------------------------------------------------------------------

#: Events one hybrid-clock millisecond can tell apart: the counter fills the nanoseconds below the millisecond.
HLC_COUNTER_LIMIT = 1_000_000

#: Clock drift at which a node is degraded, and at which it is critical.
HLC_DRIFT_DEGRADED_MS = 100
HLC_DRIFT_CRITICAL_MS = 1_000

#: A remote clock further ahead than this is refused, so that one bad clock cannot drag all others with it.
HLC_AHEAD_MS_MAX = 60_000

# --- memory and disk -------------------------------------------------------------------------------------------

#: Unit of cache coherence on the machines Seawall runs on; single-writer fields of different writers never share one.
CACHE_LINE_SIZE = 64

#: Units in which a disk may tear a write.
SECTOR_SIZE = 512
PAGE_SIZE = 4_096

#: Operations in flight in a disk ring: far more than a committer has, few enough to drain in a shutdown.
DISK_RING_ENTRIES = 256
DISK_RING_ENTRIES_MAX = 4_096

#: Buffers one vectored call may take (IOV_MAX on Linux and macOS).
IOVEC_COUNT_MAX = 1_024

# --- control batches, topics and snapshots ---------------------------------------------------------------------

#: One JSON document in a control batch: a topic's configuration before and after, with the longest names and tags.
CONTROL_DOCUMENT_SIZE_MAX = 64 * KIB

#: Parts of a compound control batch. With the bound on one part it also bounds what one position can change: a whole
#: transaction, with what its topics need beside its batches.
COMPOUND_PARTS_MAX = 20_000

#: Ranges of seqs in one delete of records: 4 KiB where they lie close together, 32 KiB at the most. A delete of more is
#: several control batches, each small enough to be written on a full disk.
DELETE_RANGES_MAX = 2_048

#: What a sequencer keeps of one client (`CLIENT` control batches, snapshots).
CLIENT_ROW_SIZE = 64

#: A tag: a deletion key that people type, not data.
TAG_SIZE_MAX = 256

#: Who a cursor belongs to: a consumer, a group or a router; as long as a topic name.
CURSOR_OWNER_SIZE_MAX = 255

#: Topics, and cursors over all topics, of one data directory: both live in memory and in every snapshot.
TOPICS_MAX = 100_000

#: Topics that one commit creates, and the bytes that one of them takes in the log at the most.
TOPICS_CREATED_AT_ONCE = 256
TOPIC_CREATE_SIZE_MAX = 4 * KIB
#: Connections over which one client creates topics at the same time, so that they share commits.
CREATES_AT_ONCE = 16
CURSORS_MAX = 1_000_000

#: Different configurations of topics that are remembered while snapshot and log are read: 1 KiB each.
TOPIC_CONFIGS_CACHED = 256

#: Idempotency keys one topic remembers at a time; more appends with keys than this in a window have to wait. And the
#: size of a key: what a program names its work by, not data.
IDEMPOTENCY_KEYS_MAX = 100_000
IDEMPOTENCY_KEY_SIZE_MAX = 4 * KIB

#: A metadata snapshot: it is read and checked as a whole, in memory.
SNAPSHOT_SIZE_MAX = 1 * GIB

#: Snapshots kept: the newest, and the one to fall back to if it is damaged.
SNAPSHOTS_KEPT = 2

#: Space held back in a data directory so that deletes, which are writes, still work on a full disk.
BALLAST_SIZE = 1 * MIB

#: Bytes of records that a topic of class ephemeral holds in memory if it has no cap of its own.
EPHEMERAL_BYTES_MAX = 256 * MIB

#: What all such topics hold together, whatever their caps say: this part of the memory limit, in percent, which with
#: what is held for peers leaves half of the memory to the process; bytes where nobody has looked at the memory.
EPHEMERAL_PERCENT = 25
EPHEMERAL_SIZE = 1 * GIB
EPHEMERAL_SIZE_MIN = 1 * MIB

#: A file of the write-ahead log, preallocated whole. The bound is what a reader may have to hold as one epoch.
WAL_FILE_SIZE = 64 * MIB
#: Bytes of log between checkpoints: opening after a crash goes through so many in about a second.
CHECKPOINT_SIZE = 16 * WAL_FILE_SIZE
WAL_FILE_SIZE_MIN = 64 * KIB
WAL_FILE_SIZE_MAX = 1 * GIB

#: Bytes the reader of the write-ahead log takes at once, where an epoch is not larger: many small epochs a call, and
#: few enough that they are still in the core's own cache when they are verified (2 MiB: a third slower).
WAL_READ_SIZE = 512 * KIB

#: Bytes of a mapped file of the log that are brought into memory at once, and announced to the disk ahead of that.
WAL_MAPPED_SIZE = 8 * MIB

# --- transactions ------------------------------------------------------------------------------------------------

#: Batches of one transaction (their references, 120 bytes each, fit half a lane), and their bytes: they are copied
#: while nobody else publishes.
TRANSACTION_BATCHES_MAX = 16_000
TRANSACTION_SIZE_MAX = 4 * GIB
#: Topics that one transaction writes, and cursors that join it: each costs a sync, or a place in one control batch.
TRANSACTION_TOPICS_MAX = 256
TRANSACTION_CURSORS_MAX = 1_024
#: Owners whose last transaction is remembered, some megabytes with a few topics each; and the size of their names.
TRANSACTION_OWNERS_MAX = 10_000
TRANSACTION_OWNER_SIZE_MAX = 255
#: Bytes of staged batches that are copied at once.
TRANSACTION_PIECE_SIZE = 8 * MIB
#: How long what was staged waits for its transaction, unless configured: longer than it takes to repair a job by hand.
STAGING_TTL_MS = 86_400_000

# --- lanes and sequencing --------------------------------------------------------------------------------------

#: A batch of this size is written at its place and not copied into a lane: copying wins below, one write above.
LARGE_BATCH_SIZE = 64 * KIB

#: Places of a topic where client seqs were given up that it remembers: 100 KiB of memory, 32 bytes each in a snapshot.
SKIPS_KEPT = 1_024

#: Staging of one lane: what one group commit takes from a busy worker, and the overflow that forces a serialized drain.
LANE_BUFFER_SIZE = 4 * MIB
LANE_OVERFLOW_SIZE = 8 * MIB

#: Memory that an overflowing lane asks for at a time.
LANE_OVERFLOW_CHUNK_SIZE = 1 * MIB

#: Lanes of one data directory: one for each worker, more than any machine has cores for them.
LANES_MAX = 1_024

#: Seqs that one durable ceiling lets a topic hand out; one that has come far is granted several times that.
CEILING_STEP = 1_048_576

#: Rows one call of the commit frontier fills; it is called again while there are more batches. 56 bytes each.
ADMISSION_ROWS = 4_096

#: Sessions of one data directory, 144 bytes of memory each; above it the longest idle ones are retired.
CLIENTS_MAX = 1_000_000

#: Publishers whose last 256 results are in memory, 8 KiB each; a duplicate of another one is told no numbers.
CLIENTS_REMEMBERED = 16_384

#: Bytes a scan of a segment takes at once, where a batch is not larger.
SEGMENT_SCAN_SIZE = 1 * MIB

#: Bytes of the indexes of sealed segments in the memory of a process, 48 for each of 1.4 million batches: reading one
#: of 10,000 batches again takes less than a millisecond.
INDEX_CACHE_SIZE = 64 * MIB

#: Files of segments that a process keeps open over all topics: so many of its descriptors, one part in four, and never
#: fewer or more than these. Reopening one costs some microseconds; beyond a few thousand nobody notices.
SEGMENT_FILES_PART = 4
SEGMENT_FILES_OPEN_MIN = 32
SEGMENT_FILES_OPEN_MAX = 4_096

#: Descriptors that are neither connections nor segment files: files of the log, event loops, rings, locks, pipes, and
#: files that are open for a moment. A busy server has some fifty; others may share the process.
OTHER_DESCRIPTORS = 160

#: Descriptors of one connection: its socket, and the duplicate that files are sent through.
CONNECTION_DESCRIPTORS = 2

#: Descriptors that are kept open to be given up when a change under way needs one and there is none left.
DESCRIPTORS_IN_RESERVE = 4

#: Segments that are begun before those before them are sealed: the indexes of all are in memory and in snapshots.
SEGMENTS_FILLING_MAX = 64

#: Bytes between two wanted batches that are read and thrown away sooner than the read is split.
READ_GAP_SIZE_MAX = 4 * KIB

#: Bytes that are read and verified in one step: little enough to be in the processor's cache when they are used next.
READ_PIECE_SIZE = 512 * KIB

#: Bytes of a file that are worth being mapped instead of read, where they are copied once more in any case.
READ_MAPPED_SIZE_MIN = 256 * KIB

#: Memory of reads that is used again: the least and the largest stretch that is kept, and how much in all.
READ_BUFFER_SIZE_MIN = 1 * MIB
READ_BUFFER_SIZE_MAX = 16 * MIB
READ_MEMORY_KEPT = 96 * MIB

#: Threads that fill Arrow tables at once; more of them wait for memory, not for the processor.
ARROW_THREADS_MAX = 4

#: Disk space an active segment reserves ahead: it doubles from the first to the second, so that a quiet topic costs
#: little and a busy one asks the file system rarely.
SEGMENT_RESERVE_SIZE_MIN = 64 * KIB
SEGMENT_RESERVE_SIZE_MAX = 16 * MIB

# --- fabric: defaults, and ranges from the least to the most ---------------------------------------------------

#: Brokers and replicas that a fabric has places for: their vectors fill pages of a fixed size.
FABRIC_BROKERS_MAX = 32
FABRIC_REPLICAS_MAX = 16

#: Entries of the global order index: what is ordered and not yet durable everywhere, and some more for late readers.
FABRIC_GOI_ENTRIES = 65_536
FABRIC_GOI_RANGE = (128, 1 << 28)

#: Batches that one broker may have undecided; each takes a slot and, once it is decided, a result.
FABRIC_PBR_ENTRIES = 4_096
FABRIC_PBR_RANGE = (64, 1 << 19)

#: Both slots of the checkpoint: 64 bytes a client and a topic in each, so that 100,000 clients fit.
FABRIC_CHECKPOINT_SIZE = 16 * MIB
FABRIC_CHECKPOINT_RANGE = (2 * PAGE_SIZE, 1 * GIB)

#: Bytes of batches that one broker may have undecided. By default two of the largest blocks, so that all of a fabric
#: with one broker fits the 64 MiB of shared memory that containers have.
FABRIC_BLOG_SIZE = 2 * BLOCK_SIZE_MAX
FABRIC_BLOG_RANGE = (64 * KIB, 1 * TIB)

# --- brokers ---------------------------------------------------------------------------------------------------

#: How long a batch that is still arriving may keep its slot: completion cannot pass it, so nobody's slots get free.
BROKER_RESERVATION_MS = 1_000

#: Batches that arrive in pieces, over all connections of a broker; each may take a whole batch of private memory.
BROKER_UPLOADS_MAX = 64

#: Fill of ring or BLog, in percent, at which a broker is under pressure, and at which it is not any more. Far enough
#: apart that it does not change with every batch.
BROKER_HIGH_WATERMARK_PERCENT = 80
BROKER_LOW_WATERMARK_PERCENT = 50

#: Pressure that lasts this long is told to publishers: a burst is over before, a slow disk is not.
BROKER_PRESSURE_MS = 5_000

#: Answers of one turn; there is another turn while there are more.
BROKER_ANSWERS_MAX = 1_024

# --- sequencer of a pod ----------------------------------------------------------------------------------------

#: Refs of slots between one collector and one worker: eight drains, so that neither waits for the other's turn.
SEQUENCER_QUEUE_REFS = 32_768

#: Finished stretches of the global order index that wait for the frontier, for each worker: one for each drain.
SEQUENCER_RANGES = 4_096

#: Such stretches of all workers that cannot be joined yet because an earlier one is still being written. A worker has
#: one at a time under way; what finds no room waits in the worker's ring.
GOI_RANGES_WAITING_MAX = 4_096

#: How long the frontier may stand although positions are handed out, before it looks at the index itself: a stretch
#: that nobody told of is a defect, and a pod that stands for ever is worse.
GOI_RECONCILE_MS = 5_000

#: Part of the index, in percent, behind the last checkpoint at which another one is due: what is behind it cannot be
#: written over, and before the order stops (`GOI_HIGH_WATERMARK_PERCENT`) workers must have come to rest.
GOI_CHECKPOINT_PERCENT = 50

#: How long a sequencer counts as alive after its last step.
SEQUENCER_LEASE_MS = 2_000

#: Refs that a worker takes in one drain, with one reservation for all of them: enough to make its cost nothing, and
#: their entries still fit the core's own cache.
SEQUENCER_DRAIN_REFS = 4_096

#: Fill of the global order index, in percent, at which workers stop reserving, and at which they go on.
GOI_HIGH_WATERMARK_PERCENT = 90
GOI_LOW_WATERMARK_PERCENT = 80

#: How long a claimed slot may be without its token before a NOP takes its place: far longer than a reservation lives.
STUCK_SLOT_MS = 10_000

#: Batches of order 5 that one worker holds back for lack of an earlier one, and the percentage of that, or of a ring,
#: above which the oldest are sent back.
HELD_BATCHES_MAX = 10_000
HELD_HIGH_WATERMARK_PERCENT = 80

#: Clients of one worker that may have batches held back at a time: 2 KiB each.
HELD_PAGES = 1_024

#: How long a session may be silent before what its held batches wait for is given up.
GAP_SILENCE_MS = 30_000

#: Publishers whose windows one worker has in memory; the others wait in storage.
WORKER_CLIENTS_MAX = 100_000

# --- server ------------------------------------------------------------------------------------------------------

#: Memory that the connections of a loop receive into, one at a time: a receive that amortises its call, and frames that
#: are not larger than a quarter of it need no memory of their own.
SERVER_RECEIVE_SIZE = 1 * MIB

#: Frames that one look at received bytes finds; it looks again while there are more.
SERVER_FRAME_ROWS = 4_096

#: Descriptors of connections that the publish thread can have are below this.
DESCRIPTORS_MAX = 1 << 20

#: Batches that the publish thread receives, at the most, before it commits them.
RECEIVED_BATCHES_MAX = 2_048

#: Where the binary protocol listens.
LWP_PORT = 1992

#: How long a node may take to end in order: less than what supervisors wait before they kill.
NODE_DRAIN_S = 25.0
#: What closing may take beyond that where somebody was cut off, so that what was taken is written.
CUT_OFF_S = 2.0

#: Addresses one node listens on: those of a machine's networks.
LISTEN_ADDRESSES_MAX = 16
#: The least that a reader may be held to: below it a large batch would take longer than anybody waits.
READ_RATE_MIN = 64 * KIB

#: Parts of the memory limit, in percent: from the first on memory is given back early, from the second on writes are
#: held. Both end a little below, so that they do not change with every look.
MEMORY_FLUSH_PERCENT = 80
MEMORY_HOLD_PERCENT = 95
MEMORY_CALM_BELOW_PERCENT = 5

#: How often memory is looked at, and what publishers are told to wait for while writes are held.
MEMORY_LOOK_S = 0.2
PRESSURE_RETRY_MS = 1_000

#: How long writes are held before one publisher after the other is let through, a receive at each look: what it has
#: sent takes memory here until it is stored, so holding everybody for ever might free nothing.
PRESSURE_PASS_S = 10.0

#: Threads that read large portions for readers: a disk with nothing else to do serves a few at once.
READER_THREADS = 4
#: Connections of one listener: 100,000 would fit the memory, but not the descriptors a process usually gets.
CONNECTIONS_MAX = 10_000

#: Connections beyond that which are open at the same time because they are told so; more are closed without a word.
CONNECTIONS_REFUSED_AT_ONCE = 32

#: How long one frame may take: this, and its size at this rate. Slower peers keep memory that others need.
FRAME_TIME_S = 30.0
FRAME_BYTES_PER_SECOND = 64 * KIB

#: Answers that wait for one peer before nothing more is read from it, and how long it may take none of them.
OUTBOX_SIZE = 8 * MIB
SEND_STALL_S = 60.0

#: How long, and for how much, a connection is read behind its last frame: a reset would swallow that frame.
LINGER_S = 1.0
LINGER_SIZE = 1 * MIB

#: A peer that is silent for so long is probed by the system, and given up after so many probes without an answer: two
#: minutes in all. Published version 1 clients may be silent for as long as they like.
TCP_KEEPALIVE_IDLE_S = 60
TCP_KEEPALIVE_INTERVAL_S = 15
TCP_KEEPALIVE_PROBES = 4

#: How long a TLS handshake may take, and how many an event loop has under way: each has a descriptor and some 100 KiB.
HANDSHAKE_S = 10.0
HANDSHAKES_MAX = 1_024

#: Silence after which version 2 pings, and after which a connection of version 2 ends.
KEEPALIVE_MS = 10_000
IDLE_MS = 30_000
KEEPALIVE_MS_MIN = 100

#: How long a connection that ends may take to answer what is under way.
DRAIN_S = 5.0
#: How long the interpreter's end waits for records under way: a server that is gone must not keep a program alive.
EXIT_FLUSH_S = 5.0

#: Bytes of batches in one frame to a reader, but for a single larger batch: so many that looking them up costs little
#: beside sending them; and where the server has to read them. They are counted by 16 bits: small ones take less room.
FETCH_SIZE_MAX = 16 * MIB - 64 * KIB
FETCH_READ_SIZE_MAX = 8 * MIB
FETCH_CHUNKS_MAX = 65_535
FETCH_SMALL_SIZE_MAX = 4 * MIB
#: The least that a reader asks for after lost connections: below it a frame costs more than its bytes.
ANSWER_SIZE_MIN = 4 * KIB
#: Ranges of live seqs and names of segments in one answer to FILES: some 200 KB of JSON, made on the event loop.
FILES_RUNS_MAX = 4_096
FILES_SEGMENTS_MAX = 256

#: Bytes from which a stretch of a file is sent without passing through this process.
SEND_FILE_SIZE_MIN = 32 * KIB

#: Blocks of files, 1 MiB each, that are known to fail when they are sent: 100 bytes of memory each, more than a disk
#: has bad places that anybody still uses.
UNFIT_BLOCKS_MAX = 1_024

#: What one peer may have unsent before pushes to it wait: enough to keep the network busy meanwhile.
PUSH_UNSENT_SIZE = 1 * MIB
#: Portions that are read at once for the requests of one connection: the disk is busy, and memory is not.
FETCHES_AT_ONCE = 4
#: How long a short push may wait for more at a subscriber's wish: longer than this nobody gains anything.
PUSH_LINGER_US_MAX = 1_000_000

#: Subscriptions of one connection, and requests it may have under way beside them.
SUBSCRIPTIONS_MAX = 256
REQUESTS_MAX = 1_024

#: Bytes one round of a copy through user space moves, where the kernel cannot copy between two files itself.
COPY_BUFFER_SIZE = 1 * MIB

#: Connections the kernel holds that nobody has accepted yet; Linux cuts it to `net.core.somaxconn` (4,096).
LISTEN_BACKLOG = 1_024

# --- what a node holds for its peers ---------------------------------------------------------------------------

#: The part of the memory limit, in percent, that is held for peers at the most: frames that arrive or wait, requests,
#: portions for readers, answers. The rest is for the log and for the process itself. Bytes where nobody knows a limit.
PEER_MEMORY_PERCENT = 25
PEER_MEMORY_SIZE = 256 * MIB
PEER_MEMORY_SIZE_MIN = 8 * MIB

#: What is held for one connection: a frame of the largest size that arrives, and a portion that is sent meanwhile.
CONNECTION_MEMORY_SIZE = 64 * MIB

#: Amounts of memory that do not wait behind larger ones; and what is read at once for a reader while others wait.
MEMORY_SMALL_SIZE = 64 * KIB
CONTENDED_PORTION_SIZE = 1 * MIB

#: One receive while too much waits in memory already: requests of most kinds, and no data.
RECEIVE_SHORT_SIZE = 4 * KIB

#: What a request costs beside its bytes: its task and what that refers to.
REQUEST_SIZE = 4 * KIB

#: How long one frame may take while others wait for the memory that it has reserved: this, and its size at this rate.
#: Fast enough for any network of a data centre.
CONTENDED_FRAME_TIME_S = 2.0
CONTENDED_FRAME_BYTES_PER_SECOND = 1 * MIB

#: How long a peer may take less than `FRAME_BYTES_PER_SECOND` of its answers while others wait for their memory.
CONTENDED_STALL_S = 5.0

#: A frame before its peer has shown a token, where one is needed: HELLO with the longest token and name, and some more;
#: and how long that may take from the beginning of the connection.
UNADMITTED_PAYLOAD_SIZE_MAX = 16 * KIB
ADMISSION_S = 2.0

#: Threads that decompress what publishers send: it takes a whole processor each, and others need some, too.
CHECKER_THREADS = 2

#: Plain bytes of compressed batches that are looked at on an event loop, of what came together; bytes of compressed
#: payloads of version 1, which do not say how large they become: both about a millisecond. And what a thread takes at
#: once.
CHECK_HERE_SIZE = 64 * KIB
UNPACK_HERE_SIZE = 4 * KIB
CHECK_SIZE = 32 * MIB

#: A callback of an event loop that takes longer is counted: everybody else on the loop has waited for it.
SLOW_CALLBACK_NS = 1_000_000

#: Topics of a list that are encoded at once.
TOPICS_LISTED_AT_ONCE = 32

#: Bytes of batches whose tags are looked up at once, before others may change the store: few tags come twice in them;
#: and distinct tags that are added, found or dropped before other threads may have the interpreter.
TAG_SLICE_SIZE = 1 * MIB
TAG_SLICE_COUNT = 256
