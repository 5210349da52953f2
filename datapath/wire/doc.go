// Package wire is the protocol between the nodes of a job: the handshake, the
// frame, the op numbers and the encoding of every message. This comment is the
// specification; the code is checked against it. The package opens no sockets,
// keeps no state, and trusts no length: Parse checks bounds, refuses trailing
// bytes, and is fuzzed with every message.
//
// A message names its fields once (Message.fields); one codec encodes and decodes.
//
// All integers are little-endian. Op numbers, field orders and error numbers
// (Linux errnos) are append-only; any other change raises Version.
//
// # Handshake
//
// A connection starts with four messages of fixed size; nothing else is read
// before they are done. C is the side that dialled, S the one that accepted.
//
//	C → S  Hello      44 bytes
//	     0   4  "BVhi"
//	     4   2  version
//	     6   1  purpose: 1 metadata, 2 bulk, 3 stream, 4 between homes, and
//	           heartbeats, 5 from a home to its partner
//	     7   1  protection: 0 none, 1 a MAC per record, 2 TLS
//	     8   2  node id of C; 0xffff: a client outside the job
//	    10   2  node id of the S that C wants
//	    12  32  nonce of C, random
//	S → C  Challenge  72 bytes
//	     0   4  "BVch"
//	     4   2  version
//	     6   1  protection of S
//	     7   1  zero
//	     8  32  nonce of S, random
//	    40  32  mac("bivouac-server-1")
//	C → S  Proof      36 bytes
//	     0   4  "BVpr"
//	     4  32  mac("bivouac-client-1")
//	S → C  Verdict    36 bytes
//	     0   4  "BVok"
//	     4  32  mac("bivouac-accept-1")
//
// mac(label) is HMAC-SHA-256 under the job key over label (16 bytes), the
// Hello as it was sent (44), the nonce of S (32) and the job's name (the
// rest). Either side closes the connection at the first violation.
// An S that speaks another version or has another protection sends only the
// first 8 bytes of its Challenge, so that C can report it, and closes.
//
// With protection, all that follows the Verdict is in the records of package
// secure, whose keys are derived from the job key, the Hello as it was sent, the
// nonce of S and the job's name.
//
// After a Verdict on purpose 3 another protocol (Raft) uses the connection. On
// the others C sends requests and S sends replies, as frames.
//
// # Frame
//
//	 0   4  length: bytes after the header, at most MaxFrame
//	 4   4  body length: how many of them are the body; the rest is data,
//	        at most MaxData, of read-many MaxMany
//	 8   2  op
//	10   2  status: an errno in a reply, 0 in a request
//	12   4  tag: chosen by C, repeated by S
//	16   8  epoch of the sender's cluster map
//	24   4  wait: in a request, the milliseconds until C gives up, 0 is
//	        never; in a reply 0
//	28   4  CRC-32C of the body, 0 if there is none
//	32   4  CRC-32C of bytes 0 to 31
//	36   …  body, then data
//
// A wrong checksum of header or body ends the connection. Data has a checksum
// where an op says so (read-summed, write-summed, put-pieces).
//
// Replies come in any order. A reply whose status is not 0 has no data, but
// may have a body.
//
// # Ops and their messages
//
//	op             n   request      reply
//	lookup         2   DirName      EntryResp
//	create         3   CreateReq    AttrResp (also with EEXIST)
//	unlink         4   DirName      EntryResp
//	rename         5   RenameReq    EntryResp: what was replaced
//	readdir        6   ReadDirReq   EntriesResp
//	getattr        7   InoReq       AttrResp
//	setattr        8   SetattrReq   AttrResp
//	readlink       9   InoReq       StringResp
//	mkdir         11   CreateReq    AttrResp
//	rmdir         12   DirName      -
//	link          13   LinkReq      AttrResp
//	mirror        14   MirrorReq    MirrorResp
//	stand-in      15   StandInReq   that of the op in the request
//	stand-in-peer 16   StandInReq   the same
//	stand-in-once 17   StandInReq   the same
//	open-ahead    18   OpenAheadReq  OpenAheadResp
//	prepare       19   PrepareReq   VoteResp
//	commit        20   TxReq        -
//	abort         21   TxReq        -
//	outcome       22   TxReq        OutcomeResp
//	rename-lock   23   RenameLockReq  -
//	ancestor      24   AncestorReq  InoReq: where the walk ended
//	open          25   OpenReq      OpenResp
//	create-open   26   CreateOpenReq  OpenResp (also with EEXIST)
//	closed        27   ClosedReq    -
//	recall        28   RecallReq    RecallResp
//	remove-objects 29  InosReq      -
//	append        30   AppendReq    PlaceResp
//	readdir-lease 31   ReadDirReq   LeasedListingResp
//	read          32   ReadReq      data
//	write         33   WriteReq + data   -
//	sync          34   InoReq       -
//	truncate      35   TruncateReq  -
//	remove-object 36   InoReq       -
//	space         37   -            SpaceResp
//	lock          38   LockReq      LockResp
//	test-lock     39   LockReq      HeldLockResp
//	wake          40   WakeReq      -
//	getxattr      41   XattrReq     BytesResp
//	setxattr      42   SetxattrReq  -
//	listxattr     43   InoReq       NamesResp
//	removexattr   44   XattrReq     -
//	allocate      45   RangeReq     -
//	punch         46   RangeReq     -
//	data          47   DataReq      ExtentResp
//	allocated     48   InoReq       SizeResp
//	shard-create  49   ShardCreateReq  -
//	shard-fill    50   ShardFillReq   -
//	shard-change  51   ShardChangeReq  -
//	shard-report  52   ShardReportReq  ShardReportResp
//	shard-read    53   ShardReadReq  EntriesResp
//	read-if-present  54  ReadReq      SumResp + data
//	read-many     55   ReadManyReq  ReadManyResp + data
//	lookup-lease  56   DirName      LeasedEntryResp
//	getattr-lease 57   InoReq       LeasedAttrResp
//	revoke        58   RevokeReq    -
//	drain         59   DrainReq     -
//	read-summed   60   ReadReq      SumResp + data
//	write-summed  61   SummedWriteReq + data   -
//	cached-reply  62   CachedReplyReq  CachedReplyResp
//	put-pieces    63   PutPiecesReq + data   PutPiecesResp
//	renew-lease   86   RenewLeaseReq  RenewLeaseResp
//	copy-range    87   CopyRangeReq + data   -
//	others above 63    JSON, and data where the op says so
//
// A reply to any op of the namespace whose status is EREMOTE has the body RedirectResp: another node has the entry. The
// directory is sharded since that epoch; if the epoch is 0, ask its home.
//
// # Encodings
//
// Fields follow one another without padding.
//
//	string       4 length, then the bytes
//	bytes        the same
//	bool         1: 0 or 1
//	T…           a list: 4 count, then that many T
//	[T]          an optional: bool, then a T if it is 1
//	Layout       1 kind, 1 copies, 2 node, 4 chunk size, 2 width, 8 epoch
//	Attr         8 ino, 4 mode, 4 nlink, 4 uid, 4 gid, 4 rdev, 8 size,
//	             8 atime, 8 mtime, 8 ctime, Layout
//	Entry        8 ino, 4 mode, [Attr], string name
//	New          4 mode, 4 uid, 4 gid, 4 rdev, string target, Layout
//	Change       4 set, 4 mode, 4 uid, 4 gid, 8 size, 8 atime, 8 mtime, Layout,
//	             8 freeze
//
//	Edit         1 kind, 8 dir, string name, 8 ino, 4 mode, 8 to dir,
//	             string to name, [New]
//	Extent       8 offset, 8 length
//	Opened       8 ino, 8 ticket, bool unsure, and of appends: 8 sequence,
//	             Extent, Extent…; Lock…; bool maps
//	Opening      8 ticket, bool maps
//	Lock         1 kind, 1 type, 8 owner, 8 start, 8 end, 4 pid
//
//	DirName      8 dir, string name
//	CreateReq    8 dir, string name, New
//	RenameReq    8 dir, string name, 8 new dir, string new name, 4 flags
//	ReadDirReq   8 dir, string after, 4 limit
//	InoReq       8 ino
//	SetattrReq   8 ino, Change
//	LinkReq      8 ino, 8 dir, string name
//	MirrorReq    2 home, 8 seat, 8 stream, 8 sequence, bool complete, bytes…
//	MirrorResp   1 verdict: 0 accepted, 1 gap, 2 replaced; 8 last stream, bool full
//	StandInReq   2 from, 2 to, 2 op, bytes: the request
//	PrepareReq   8 transaction, Edit…
//	TxReq        8 transaction
//	RenameLockReq  8 transaction, bool unlock
//	AncestorReq  8 from, 8 stop
//	AttrResp     Attr, 8 st_ctime before a setattr; else 0
//	EntryResp    [Entry]
//	EntriesResp  Entry…
//	StringResp   string
//	VoteResp     [Entry], [Attr]
//	OutcomeResp  1 outcome: 0 undecided, 1 committed, 2 aborted
//	Shard        8 dir, 8 generation
//	ShardCreateReq   Shard, 8 epoch, 8 seed, Attr, 2 node…
//	ShardFillReq     Shard, Entry…
//	ShardChangeReq   Shard, 1 order, 8 freeze, Attr
//	ShardReportReq   Shard, 8 freeze, 4 subdirectories, 8 mtime
//	ShardReportResp  1 state, Attr
//	ShardReadReq     8 epoch, ReadDirReq
//	SpaceResp    8 capacity, 8 used, 8 free, 8 objects
//	ReadReq      8 ino, 8 offset, 4 length
//	ReadManyReq  bool summed, ReadReq…
//	ReadManyResp  (2 status, 4 length, 4 CRC-32C if summed, else 0)…: the
//	             bytes stand in the data one behind the other
//	WriteReq     8 ino, 8 offset
//	CopyRangeReq  8 ino, 8 epoch, 8 run, 8 try, 8 sequence number, 8 offset, 8 bytes expected
//	PutPiecesReq  (8 ino, 8 offset, 4 length, 16 xxh3-128)…: the
//	             bytes stand in the data one behind the other
//	PutPiecesResp  2 status…
//	TruncateReq  8 ino, 8 size
//	OpenReq      8 run, 8 ino, Opening
//	OpenResp     Attr, bool maps, bool alone, 8 run of the home
//	OpenAheadReq  8 run, (8 ino, 8 ticket)…
//	OpenAheadResp  8 run of the home, Attr…
//	CreateOpenReq  8 run, Opening, CreateReq (an empty name: the file has none)
//	ClosedReq    8 run, Opened…
//	RecallReq    8 run, 8 after, 8 ino…
//	RecallResp   8 run, 8 floor, bool more, bool busy, Opened…
//	InosReq      8 ino…
//	XattrReq     8 ino, string name
//	SetxattrReq  8 ino, 1 mode: 0 any, 1 create, 2 replace; string name, bytes value
//	BytesResp    bytes
//	NamesResp    string…
//	RangeReq     8 ino, 8 offset, 8 length
//	DataReq      8 ino, 8 offset
//	ExtentResp   8 from, 8 to
//	SizeResp     8 bytes
//	Lease        4 entry, 4 attributes, 2 home, 8 session, 4 its term: milliseconds
//	LeasedEntryResp  Entry, Lease
//	LeasedAttrResp   Attr, Lease
//	LeasedListingResp  Attr, Lease, (Entry, 4 entry, 4 attributes: milliseconds)…
//	RevokeReq    (8 ino, string name)…
//	RenewLeaseReq   8 session
//	RenewLeaseResp  4 milliseconds
//	DrainReq     32 nonce…: those of the Hellos of connections
//	CachedReplyReq  32 nonce of a connection that was drained, 4 tag
//	CachedReplyResp  1 fate: 0 unknown, 1 not started, 2 answered; then
//	             2 status, bytes body
//	AppendReq    8 run, 8 ino, 8 sequence, 8 length, 8 end, 8 wait,
//	             8 unused, 8 freeze, bool thaw
//	PlaceResp    8 offset, 8 tail, Attr, 1 no other node has it open
//	LockReq      8 run, 8 ino, Lock, 8 waiter, bool cancel
//	LockResp     bool granted, 8 version
//	HeldLockResp 2 node, Lock
//	WakeReq      8 waiter…
//	RedirectResp  8 dir, 8 epoch
//
// A message has only one encoding: Append reproduces byte for byte what Parse accepted.
package wire
