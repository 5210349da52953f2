// Package rpc connects the nodes of a job: a server with a table of handlers, and a
// pool of connections to every other node on which many calls are outstanding at
// once. It reads nothing from a peer before the peer has proved that it has the job's
// key, and afterwards trusts none of its lengths, tags or timing.
//
// Package wire defines the protocol; this package implements the frame and the handshake. It must not know which node
// holds which data. It repeats no call, except in a Retrier. If the job asks for protection, package secure protects
// everything after the handshake: then replies are sent from memory, without sendfile, and read without splice.
//
// # Connections
//
// Metadata, bulk data, calls between homes and heartbeats, and streams (Raft) have
// connections of their own, so that a small call waits neither behind a large body nor
// behind a call that waits for it. A connection is made by the first call that needs
// it, and closed by the client when idle. For bulk data there are up to four
// (BenchmarkConns in integration/netcluster); a call takes the least loaded one.
//
// While a node is in back-off, calls to it fail at once. Disconnect fails all calls to a node that the map has given
// up, including those that wait for a connection.
//
// With one call outstanding the caller reads the socket itself; with more, a reader goroutine demultiplexes. The holder
// of the read token reads, completes calls and passes the token on. No goroutine reads an unused connection for 10 ms;
// after that the reader does, which notices when the peer closes it. A call on a connection unused for more than 1 ms
// polls it first. A call before that can be lost, like any call during which the connection ends.
//
// After a connection broke with calls outstanding, the next connection first makes the peer finish them (OpDrain): a
// call that starts after another was lost runs after it. Connections between homes skip the drain, so that they never
// wait.
//
// # Reply cache
//
// An op that must not run twice (wire.Op.ReplyCached) continues when its connection breaks, and the server caches its
// reply: the last 64 of a connection, for the last 256 closed connections that are not for bulk data. After the drain,
// a Retrier asks for the cached reply (OpCachedReply); a call without one has not started, and is repeated. A restarted
// server does not know the connection: then the call fails with ECONNRESET and reports that its effect is unknown.
//
// # Memory
//
// Messages are encoded into pooled buffers, which are returned when the frame is
// written or the reply parsed. Bulk data has buffers of fixed size classes, at most
// ServerConfig.Memory bytes at a time and 8 MiB on one connection: beyond that the
// server stops reading (back-pressure). Replies are read into the caller's memory.
//
// # Errors
//
// The errno that a call's error wraps:
//
//	ETIMEDOUT     no reply by the deadline; the call may still take effect
//	EINTR         the caller's context was cancelled; it may still take effect
//	ECONNRESET    the connection broke after the request was (partly) sent
//	EHOSTDOWN     no connection could be made; nothing was sent
//	EHOSTUNREACH  the same: the network reported it, or no address is known
//	ESHUTDOWN     Peers was closed
//	EMSGSIZE      the request is larger than a frame
//	EBADRQC       the peer has no handler for the op
//	another       the peer's handler returned it
//
// # Locks
//
//	Peers.mu
//	  connPool.mu
//	    clientConn.mu
//	Server.mu
//	  nonceRing.mu
//
// frameWriter.token is held while a frame is written; below it only frameWriter.mu is
// locked.
package rpc
