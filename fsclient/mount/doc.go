// Package mount serves a fsclient.Client to the kernel by FUSE. Its one idea is
// that a node id of the kernel is an inode number of ours: there is no table
// of inodes to keep, to lock or to forget, and what the kernel may keep depends
// only on the realm of the inode.
//
// It uses the raw interface of go-fuse. It refuses what it cannot do for the
// whole job with an error that says so: O_TMPFILE, POSIX ACLs, the extended
// attributes of trusted. and security., and the modes of fallocate that move
// bytes are EOPNOTSUPP. ENOSYS, which the kernel remembers, is the answer only
// where the kernel then does the right thing by itself: copy_file_range, poll,
// ioctl, O_TMPFILE.
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
// checked by the kernel.
//
//	operation           promise                                       exception
//	---------           -------                                       ---------
//	sealed realm        every change is EROFS; the kernel keeps       the name of a dataset is kept for
//	                    names, attributes and pages for ever          a second; see Covers, Kernel views
//	open, read          what was closed, fsynced or flushed there     a mapping, splice and sendfile show
//	                    before the open, here or there, is seen       it after the next open or read; of a
//	                                                                  file that was open before it grew there:
//	                                                                  zeros for what is new, if a thread reads
//	                                                                  at the very moment in which the kernel
//	                                                                  hears of the new size from another one
//	write               here at once; its error is that of the        there after close or fsync, the end
//	                    write, or of the next write, fsync or close   of a lock here, or a second of
//	                    of who wrote it, once                         writing on; the last half second
//	                                                                  before that dies with the daemon
//	O_APPEND            every write, here and there, has a place of   a write of over 512 KiB is several;
//	                    its own; a reader sees no zeros where one     zeros for what was under way when
//	                    is under way; of who is alone with the file   its node died, or failed; lseek then
//	                    as of any write: there after half a second    tells what this kernel believes
//	O_EXCL, mkdir,      of many, on all nodes, one succeeds
//	link, symlink
//	names               seen everywhere when the call returns; the
//	                    kernel keeps none, not even their absence
//	attributes          of files: true when asked; of directories,    of a directory in which both work
//	                    which the kernel may keep while they are      now: up to two clock ticks old there
//	                    leased: the same
//	xattr               user.* of files and directories: seen         not on symbolic links, fifos, devices,
//	                    everywhere when the call returns; 64 KiB      as everywhere in Linux
//	                    a value, and 64 KiB of names
//	user.bivouac.layout of a directory: what is made in it gets it;   of a file: while it is empty and open
//	and .chunk          local is the node that makes the file         nowhere, else EBUSY
//	truncate            what was cut off never comes back; holes      after the death of a writer that
//	                    are zeros                                     had not closed: bytes behind the end
//	fallocate           with KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE: then  ENOSPC may leave a part of it taken;
//	                    writes there do not fail for want of space    zeroing is not one step
//	SEEK_DATA, HOLE     true of what was written here, or closed      what was allocated and not written
//	                    or fsynced there                              is a hole, as on disks
//	O_DIRECT, O_SYNC    not through the page cache; durable when      metadata: see fsync
//	                    the write returns
//	st_blocks           of a file whose layout is local here: what    others: as if it had no holes
//	                    it takes
//	rename              atomic, with EXCHANGE and NOREPLACE, between  when the answer is lost with a node:
//	                    any directories; replaces like unlink         done or not done, never half
//	rename of a         below itself is EINVAL, also of two moves     between parents: EHOSTDOWN while the
//	directory           here and there at once                        home of the root is down
//	unlink, rename      who has the file open, here or there, keeps   ESTALE if a name is replaced twice
//	over a file         it: reads, writes, truncates, fstat; its      between lookup and open
//	                    space comes back with the last close, or
//	                    the death of the last node that has it
//	rmdir of an open    nothing new can be made in it: ENOENT; fstat  ESTALE, if 8,192 others were looked
//	directory           is as it was seen here last, without links    up since then
//	mtime, ctime        set by the node that keeps the inode          of writes: when it hears of them;
//	                                                                  AT_STATX_DONT_SYNC after a change
//	                                                                  of attributes or a read: beside it
//	atime               set by utimensat only                         reading does not change it
//	readdir             an entry that is there all the time is        after seekdir back over more than
//	                    listed once, whatever others do               1,024 changed entries: about there;
//	                                                                  EIO at the end if a node is down
//	                                                                  that has some of the entries
//	a directory of      as any other; names are on all nodes, one     its link count and times lag by
//	very many entries   that is down takes its own only               0.1 s behind what was done there
//	fsync               the data is on the disks of the nodes that    metadata survives the death of a
//	                    have it; what was lost of the file is told    daemon, not of its machine
//	                    once to each descriptor open here then
//	statfs              the sum over the nodes that are up            a second old
//	flock, fcntl        of processes on all nodes one has the lock;   see Locks of files
//	                    who dies has none
//	signals             a call that hangs ends with EINTR; one that   the read-ahead of the kernel ends at
//	                    goes on is not disturbed                      the deadline of a call
//	a node is down      EIO at once for what only it has; rm -rf      until the map knows: the deadline
//	                    removes names of what was lost with it        of a call; rmdir, too, removes the
//	                                                                  name of a directory that was lost,
//	                                                                  whatever was in it
//
// # Locks of files
//
// flock and fcntl, with byte ranges and open file descriptions, hold between
// nodes: the home of the file has them. They end when the process closes the
// file or dies, when its node is given up, or its daemon starts again; they
// outlive a restart of the home. The next one has a lock when all that was
// written here before its end is there, also if a signal has interrupted the
// close or the unlock, or the home was away: then it ends by itself, later. Who waits is served in turn, and a signal ends
// that in less than a second; if the home is away then, it hears of that later, and what it has
// granted meanwhile ends. F_GETLK names the process, or for one of another
// node that which has this mount. EDEADLK is found within one home; a circle
// over the files of two homes is not. A node that was given up and comes back
// has lost its locks if others took them meanwhile, and is not told. Files of a
// dataset and directories are locked on this node only.
//
// The kernel has no request for syncfs(2) of a mount like this: it returns
// when what was mapped is written back. fsync makes a file durable.
//
// # Passthrough
//
// Where kernel (6.9 and later) and privileges allow, a sealed file that is
// whole on this node is read by the kernel alone: the first open registers the
// node's object (Backer), later ones use the same id. At most
// Config.MaxBackings files are registered, those opened last. Reads, mappings
// and O_DIRECT then have the page cache of the disk, and no second one. A file
// that could not be registered is read through the mount until its last close.
//
// # Covers
//
// A dataset of small files can have a connection of its own, mounted read-only
// over its directory (Mount.Cover). There the kernel opens and closes files and
// directories without asking, which it learns for a whole connection at once:
// what it has cached costs no request at all, and a small file that it has not,
// one lookup and one read. Passthrough needs an open that is answered, so large
// files are better off below. The cover only makes things faster: the mount below
// it has the same files under the same inode numbers, and serves them before it
// is there and after it has gone. What differs is said here.
//
// Who knows what is read soon (Forecast) has it given to the kernel (FUSE_NOTIFY_STORE):
// nobody asks for it then. It is read only where
// it is already, so that this is in no reader's way, and the kernel must have looked the file up.
//
//	st_dev          of a covered dataset is not that of the mount below
//	rename, link    out of it are EXDEV, as between any two mounts
//	rmdir, rename   of its directory are EBUSY for those who may write data/
//	locks           see below: they are the kernel's, as in any dataset
//
// When the dataset's name goes, or comes to mean another dataset, the kernel
// finds that out by the next lookup of the name in the mount below, and takes the
// cover away. So nobody may have that name forgotten by a notification while the
// dataset is there.
//
// Pages of a covered file that is whole on this node can be in memory twice, as
// the file's and as its object's. The object's are not dropped after a read: other
// nodes read the same object from them, by sendfile, and the kernel drops what
// was used once before what is used again.
//
// # Kernel views
//
// When all of a dataset of small files is in its place, the node can lay a kernel
// view over its directory, upon its cover if it has one, and show it when nobody is in
// a directory of the dataset (package mounts): a read-only overlayfs of an
// image of the tree, the objects of this node, and below those a connection of the
// mount's (Mount.Objects), which has every file of the dataset under its number. An
// object is looked for when its file is opened for the first time. What this node
// had whole when the view was made the kernel then reads by itself; all else comes
// by the connection, as from a cover. What was open before is read on where it was
// opened, and what lies below serves when the view has gone. What differs from a
// cover:
//
//	st_dev, st_ino  are the view's own, and others after it is made again; who walks
//	                meets no change, who asks for a path before and after does
//	st_atime, ctime are the st_mtime
//	st_blocks       as if the file had no holes
//	xattr           a file has user.bivouac.node alone, of when the view was made,
//	                and lists it; directories have none
//	requests        are not made for what the kernel reads by itself: nobody counts it
//	node lost       files of this node are read on, also while its daemon is away
//	verify          mends an object where it lies; if it cannot, the view is taken
//	                away at once, also from under who walks, and made again without
//	                the file (Mount.Uncover)
//	job's end       what is open of this node's objects is read until it is closed
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
//	cursors.mu
//	handles.mu
//	ends.mu
//	newborns.mu
//	backings.mu
//	request.mu
package mount
