// Package txn makes the operations that change records of several homes
// atomic: mkdir, rmdir, link, unlink and rename. Its one idea is two-phase
// commit with presumed abort, run by the daemon of the home that has the
// (source) entry: what it has not written down as committed has not happened.
//
// It knows no sockets: the store, the peers and the clock are parameters. What
// concerns this node alone it leaves to the store, which does it in one step.
//
// # The protocol
//
// C is the coordinator, P each other home that has a part.
//
//	C  Hold        checks and locks what it changes itself; in memory
//	P  Prepare     the same, and writes an intent: it can now do its edits whatever happens
//	C  Decide      in one step does its edits and writes a decision with the names of all P
//	P  Commit      in one step does its edits and forgets the intent
//	C  Forget      when all P have answered
//
// The answer to the user is given after Commit, or when a P cannot be reached
// for it: then it is told again until it answers. What is locked stays locked
// on each side until that side is done, and reads of it wait, so that nobody
// sees one side without the other.
//
// C waits for locks only before it has any; where a lock is taken at P, and
// also where one more is needed at C, it takes everything back, waits for a
// random moment and tries again. So there is no deadlock between homes.
//
// # Crashes
//
// A P that has not heard of the end for a while asks C. C answers from its
// memory that it is not decided yet, from its decisions that it is committed,
// and without either that it is aborted. When C restarts it tells its decisions
// again. So after a crash at any instant, on any side, and a restart, an
// operation has happened on all sides or on none.
//
// A C that the map says is Down is not waited for: P gives the transaction up,
// that is, unlocks and keeps the intent. If C is back after all and says that
// it was committed, P does what is still possible; a name that was taken
// meanwhile gets ".late0" and so on added. Until then the operation is half
// done, with its other half on a node that nobody can reach.
//
// An inode's home that is Down cannot take part: the operation is EHOSTDOWN. One
// that cannot be reached, or whose promise is lost, is asked again in new
// attempts for some seconds, while the map says that it is Up.
// Only that a file was renamed, which changes no more than its ctime, is not
// told to it then. A new directory for which the chosen home cannot be reached
// is made here. And a name goes alone whose inode was lost with its home, a
// directory's with all that is in it, so that users can clear away what nobody can read. If the home is back after
// all, it has an inode that nothing names, which package daemon looks for: a file goes, a
// directory with something in it is told of.
//
// # What a caller is promised
//
// A call is never done twice. One whose connection breaks goes on, and who asked
// has its answer from the coordinator's memory (package rpc). A caller whose
// answer is lost all the same (ECONNRESET, because the coordinator crashed;
// ETIMEDOUT; EINTR after the grace of package mount) knows that
// the operation has happened as a whole or not at all, or will have when the
// coordinator, if it crashed, is back; it does not know which, and has to look.
// A caller that gives up before the decision aborts.
//
// # Moves of directories
//
// A directory that gets another parent moves under a lock of the whole job,
// which the home of RootIno gives out, so that the way up from its new parent,
// which is asked for home by home, cannot change meanwhile; if it leads through
// the directory itself the move is EINVAL. The lock is a lease: who has it
// stops before the lease ends, and a home of RootIno that restarts gives out
// none for as long as a lease lasts.
//
// # What it costs
//
// Calls between nodes, for an operation that a client asks of another node's
// home (of its own, one less): 1 for what concerns that home alone, 3 with a
// second home, 2 more for each further home (a file whose inode is neither
// with its old nor with its new name). The move of a directory to another
// parent adds the lock and its return, if RootIno is homed elsewhere, and a
// call for each change of home on the way up.
//
// # Locks
//
//	Coordinator.turn   one move of a directory at a time; held across calls, a context ends the wait
//	Coordinator.mu     what is to be told again
//	moves.mu           who has the lock of moves
//
// None is held while another of the last two is taken.
package txn
