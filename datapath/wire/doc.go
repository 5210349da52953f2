// Package wire is the protocol between the nodes of a job: the handshake's
// messages, the frame, the op numbers and the encoding of every message. Its
// one idea is that this comment is the specification and the code is checked
// against it. It opens no sockets, keeps no state, and trusts no length: every
// Parse is bounds-checked, refuses what is left over, and is fuzzed.
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
//	     6   1  purpose: 1 metadata, 2 bulk, 3 stream
//	     7   1  zero
//	     8   2  node id of C; 0xffff: a client without a share
//	    10   2  node id of the S that C wants
//	    12  32  nonce of C, random
//	S → C  Challenge  72 bytes
//	     0   4  "BVch"
//	     4   2  version
//	     6   2  zero
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
// rest). Either side cuts the connection at the first thing it does not like.
// An S that speaks another version sends only the first 8 bytes of its
// Challenge, so that C can say which, and cuts.
//
// After a Verdict on purpose 3 the connection belongs to its users on both
// sides. On the others C sends requests and S sends replies, as frames.
//
// # Frame
//
//	 0   4  length: bytes after the header, at most MaxFrame
//	 4   4  body length: how many of them are the body; the rest is data,
//	        at most MaxData
//	 8   2  op
//	10   2  status: an errno in a reply, 0 in a request
//	12   4  tag: chosen by C, repeated by S
//	16   8  epoch of the sender's cluster map
//	24   4  wait: in a request, the milliseconds until C gives up, 0 is
//	        never; in a reply 0
//	28   4  CRC-32C of bytes 0 to 27
//	32   …  body, then data
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
//	reap          10   InoReq       -
//	mkdir         11   CreateReq    AttrResp
//	rmdir         12   DirName      -
//	link          13   LinkReq      AttrResp
//	newdir        14   NewDirReq    AttrResp
//	dropdir       15   InoReq       -
//	enter         16   EnterReq     EntryResp: what was replaced
//	remove        17   RemoveReq    -
//	relink        18   RelinkReq    AttrResp
//	read          32   ReadReq      data
//	write         33   WriteReq + data   -
//	sync          34   InoReq       -
//	truncate      35   TruncateReq  -
//	remove-object 36   InoReq       -
//	space         37   -            SpaceResp
//	64 and above       JSON, and data where the op says so
//
// # Encodings
//
// Fields stand one behind the other without padding.
//
//	string       4 length, then the bytes
//	bool         1: 0 or 1
//	Layout       1 kind, 1 copies, 2 node, 4 chunk size, 2 width, 8 epoch
//	Attr         8 ino, 4 mode, 4 nlink, 4 uid, 4 gid, 4 rdev, 8 size,
//	             8 atime, 8 mtime, 8 ctime, Layout
//	Entry        8 ino, 4 mode, bool: an Attr follows, [Attr], string name
//	New          4 mode, 4 uid, 4 gid, 4 rdev, string target, Layout
//	Change       4 set, 4 mode, 4 uid, 4 gid, 8 size, 8 atime, 8 mtime, Layout
//
//	DirName      8 dir, string name
//	CreateReq    8 dir, string name, New
//	RenameReq    8 dir, string name, 8 new dir, string new name, 4 flags
//	ReadDirReq   8 dir, string after, 4 limit
//	InoReq       8 ino
//	SetattrReq   8 ino, Change
//	LinkReq      8 ino, 8 dir, string name
//	NewDirReq    8 parent, New
//	EnterReq     8 dir, Entry, bool replace
//	RemoveReq    8 dir, string name, 8 ino
//	RelinkReq    8 ino, 4 delta (signed)
//	AttrResp     Attr
//	EntryResp    bool: an Entry follows, [Entry]
//	EntriesResp  4 count, Entry…
//	StringResp   string
//	SpaceResp    8 capacity, 8 used, 8 free, 8 objects
//	ReadReq      8 ino, 8 offset, 4 length
//	WriteReq     8 ino, 8 offset
//	TruncateReq  8 ino, 8 size
//
// A message has one encoding only: what Parse accepts, Append gives back byte
// for byte.
package wire
