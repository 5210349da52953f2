// Package mount serves a fsclient.Client to the kernel by FUSE. Its one idea is
// that a node id of the kernel is an inode number of ours: there is no table
// of inodes to keep, to lock or to forget, and what the kernel may keep depends
// only on the realm of the inode.
//
// It uses the raw interface of go-fuse. It refuses what it cannot do for the
// whole job with an error that says so: extended attributes, fallocate and
// O_TMPFILE are EOPNOTSUPP. ENOSYS, which the kernel remembers, is the answer
// only where the kernel then does the right thing by itself: lseek with
// SEEK_DATA, copy_file_range, poll, ioctl, O_TMPFILE.
//
// # The tree
//
//	/            inode 1, 0700, of the job's user, cannot be changed
//	  data/      the datasets that can be seen, by name; below them the sealed realm
//	  scratch/   the live realm
//	  .bivouac/  files made at every open: status, stats, map
//
// # What is promised
//
// "Here" is this mount, "there" a mount on another node. Permissions are
// checked by the kernel; locks (flock, fcntl) are the kernel's, so they work
// here only.
//
//	operation           promise                                       exception
//	---------           -------                                       ---------
//	sealed realm        every change is EROFS; the kernel keeps       the name of a dataset is kept for
//	                    names, attributes and pages for ever          a second
//	open, read          what was closed, fsynced or flushed there     a mapping shows it after the next
//	                    before the open, here or there, is seen       open or read
//	write               here at once; its error is that of the        there after close or fsync, or a
//	                    write, of fsync or of close                   second of writing on
//	O_APPEND            no write here is lost                         writers there and here overwrite
//	                                                                  each other
//	O_EXCL, mkdir,      of many, on all nodes, one succeeds
//	link, symlink
//	names               seen everywhere when the call returns; the
//	                    kernel keeps none, not even their absence
//	attributes          of files: true when asked                     of directories: up to two clock
//	                                                                  ticks old there
//	truncate            what was cut off never comes back; holes      after the death of a writer that
//	                    are zeros                                     had not closed: bytes behind the end
//	rename              atomic between directories of one home;       between two homes both names are
//	                    replaces like unlink                          there for a moment; EXCHANGE is EINVAL
//	rename of a         below itself is EINVAL                        two such moves here and there at
//	directory                                                         once can make a loop
//	unlink, rename      who has the file open here keeps it           who has it open there gets ESTALE;
//	over a file                                                       ESTALE if a name is replaced twice
//	                                                                  between lookup and open
//	rmdir of an open    new names in it are ENOENT                    fstat of it is ESTALE
//	directory
//	mtime, ctime        set by the node that keeps the inode          of writes: when it hears of them
//	atime               set by utimensat only                         reading does not change it
//	readdir             an entry that is there all the time is        after seekdir back over more than
//	                    listed once, whatever others do               1,024 changed entries: about there
//	fsync               the data is on the disks of the nodes that    metadata survives the death of a
//	                    have it                                       daemon, not of its machine
//	statfs              the sum over the nodes that are up            a second old
//	signals             a call that hangs ends with EINTR; one that   the read-ahead of the kernel ends at
//	                    goes on is not disturbed                      the deadline of a call
//	a node is down      EIO at once for what only it has              until the map knows: the deadline
//	                                                                  of a call
//
// # Errors
//
// The kind of an error is its errno (errnoOf). Errors by which a node could not
// be reached are EIO. What fails in the release of a file, after which nobody
// can be told, is logged; flush has failed before with the same.
//
// # Locks
//
// None of these is held across a call to the client; cursor.turn is, and a
// context can interrupt it.
//
//	cursor.turn
//	handles.mu
//	request.mu
package mount
