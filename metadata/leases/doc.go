// Package leases is the promises by which a node may keep what it knows of a
// directory: a Table at the home remembers who was promised what, and a Cache
// at the holder keeps the answers. Its one idea is that the home tells only
// those who hold something, so that a change costs nobody a message who has not
// asked within the last second, and that a lease ends by itself.
//
// It does no I/O: who calls the holders is the home's daemon, and the clock is a
// parameter. It keeps nothing of files, no absence of a name, and grants nothing
// on what another node has changed a moment ago, so that a directory in which
// several nodes work costs no messages.
//
// # Order
//
// A home grants before it reads, and takes the holders after it has written:
//
//	lookup   1 Table.Grant   2 read the record   3 answer
//	change   1 write         2 Table.Change      3 tell the holders   4 acknowledge
//
// So whoever was answered with the record of before is among the holders. His
// answer may still be under way when he is told; therefore a holder opens a
// Fetch before he asks, and what he is told in the meantime is not kept.
//
// A term is counted by the holder from before he asked, by the home from when
// it granted: the holder's ends first. A holder that cannot be told is waited
// for until his term is over. A home that has just been restarted does not know
// what it has promised before, and acknowledges changes only after one term.
//
// # Locks
//
// Table.mu and Cache.mu are never held together, nor while anybody is called.
package leases
