// Package opens tracks which nodes have the live files of one home open. So the home alone decides when to remove an
// orphan, a file that was unlinked while open, and from which nodes.
//
// Registry is the state machine, without I/O. Files connects the Registry to the
// home's store and removes orphans that no node has open.
//
// # Opens and closes
//
// A client has a file open from the ticket of its Open or CreateOpen to that of its Closed. Closes arrive late and in
// batches; a close with a smaller ticket than the last open has no effect. A client is identified by its run: the first
// message of a later run closes all files of the earlier runs. A lost node has no file open.
//
// The registry is lost with the home's process. After a restart it awaits every node: no file is removed until each
// node has answered a metadata.Recall or was declared lost. The same question finds lost closes: the home repeats it
// from time to time to nodes that hold orphans open.
//
// # Removal
//
// An orphan that no node has open is removed: first its objects on the nodes that may store some, then its inode. Its
// size determines those nodes, unless the file is unsure: a writer died or could not report the size, the file has
// copies and was truncated, or the orphan is older than the home's process. Then all nodes of its stripe count.
// Config.Places must also treat files older than that process as unsure, because a writer may have died earlier. While
// a node is unreachable, its orphans stay and their removal is retried.
//
// A small file rests before its removal and can still be opened meanwhile: between a lookup and the open that follows
// it, renames on other nodes can replace the name more than once, and the kernel repeats the lookup only once.
//
// # Appends
//
// Package appends is the protocol; the Registry keeps a Home for each file that has appends. The loss of a node, or its
// next run, ends its appends. A home that restarts asks every node for its appends before it reserves a place
// (Recover); a node that returns to a running home reports only its open files (Await).
//
// A node that alone has a file open may buffer appends. The home records which node it has granted this. An open by
// another node waits until that node has answered a Recall of the file and its buffered appends have arrived, or for
// appends.AloneTerm if it does not answer. After a restart of the home any node that has the file open may have been
// granted this.
//
// # Versions
//
// Clients keep pages of a file as long as its st_ctime is the same. Its home sets a new st_ctime, and recalls its
// attributes, when its bytes may have changed without a request: a client that had it open has died or closes it after
// a failed write, or a truncate, which cuts the data before it sets the size, ends without a size. A home that restarts
// does not know which clients had which file open, so clients also compare its run, and keep no pages before the home
// has heard from all nodes.
//
// # Truncates
//
// A client cuts the data of a file before it sets the size, and cuts only data that the home knows of. So it announces
// the truncate by an Append with a number: the home answers once no append and no publication of a size is in progress,
// and no size grows until a Change with that number sets it, the client thaws the file or dies, or appends.FreezeTime
// has passed. After that the home refuses the number, also if it arrives late or at a restarted home: the client starts
// over. No append gets a place after the announcement; sizes grow until the last append is complete.
//
// # Shared mappings
//
// The page caches of two nodes are not coherent, so one node at a time may map a file shared and writable: the first
// one that opens it to read and write, until it has closed it. A node that was refused can get the right at its next
// open after that. The answer to a Recall restores the right in a home that has restarted, and the home grants nothing
// before all nodes have answered. A node that was given up and returns keeps its mappings: then two nodes may have the
// right, and no third one gets it.
//
// # Locks
//
//	Registry.mu   held only for updates in memory
//	  Locker      may take its own locks under it
//	Files.mu      failed removals; never together with Registry.mu
package opens
