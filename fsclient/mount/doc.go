// Package mount serves a fsclient.Client to the kernel over FUSE. Its one idea is that
// the kernel's node id is our inode number: there is no table of inodes to keep, lock or
// forget, and only the realm of an inode decides what the kernel may cache.
//
//	/            inode 1, 0700, owned by the job's user, cannot be changed
//	  data/      the datasets by name; below them the sealed realm
//	  scratch/   the live realm
//	  .bivouac/  files made at every open: status, stats, map, control
//
// Operations that cannot work for the whole job are refused with EOPNOTSUPP: POSIX ACLs, immutable
// files, the modes of fallocate that move bytes. ENOSYS, which the kernel remembers, is returned only
// where the kernel then does the right thing by itself: copy_file_range, poll. All other errors: errno.go.
//
// # Semantics
//
// "Here" is this mount, "there" a mount on another node. The kernel checks permissions.
//
//	operation           promise                                               exception
//	---------           -------                                               ---------
//	sealed realm        every change is EROFS; the kernel caches names,       the name of a dataset for a second; covers
//	                    attributes and pages for ever                         and kernel views differ (cover.go,
//	                                                                          objects.go)
//	open, read          a read sees what was closed, fsynced or flushed,      mappings, splice and sendfile see it after
//	                    here or there, before the open                        the next open or read; of a file that grew
//	                                                                          there after it was opened here, a read may
//	                                                                          show zeros for the new bytes, if another
//	                                                                          thread learns the new size at the same
//	                                                                          moment
//	                    the kernel keeps the pages of a file that has not     own writes keep them too, while the file is
//	                    changed, also across opens                            open to read and write, until a stat, an
//	                                                                          open, or a write past the page cache
//	shared mapping      of one node at a time if it may write (a descriptor   ENODEV there for descriptors opened while
//	                    for reading and writing): coherent for all its        the file is open here to read and write,
//	                    processes; for reading only: everywhere, see open     and for those with O_APPEND; the reads of
//	                                                                          such are not cached
//	write               visible here at once; an error is returned by the     visible there after close, fsync, the end
//	                    write or once by the next write, fsync or close of    of a lock here, or a second of writing;
//	                    the same descriptor                                   the last half second before is lost with
//	                                                                          the daemon
//	O_APPEND            every write, here and there, gets a place of its      a write of over 512 KiB is several; zeros
//	                    own; readers see no zeros where an append is in       where an append was in flight when its
//	                    flight; on a file that no other node has open like    node died or it failed; lseek returns what
//	                    any write: visible there after half a second          this kernel knows
//	O_EXCL, mkdir,      of many callers on all nodes one succeeds
//	link, symlink
//	O_TMPFILE           linkat names the file, with its content, on every     EOPNOTSUPP before Linux 6.1
//	                    node at once; without a name it is gone with its
//	                    last close, or the death of its node
//	names               a change is seen everywhere when the call returns;
//	                    the kernel caches no names, nor their absence
//	attributes          a change is seen everywhere when the call returns,    of a directory in which both nodes work at
//	                    though the kernel caches them while they are leased   once: there up to two clock ticks old
//	xattr               user.* of files and directories: seen everywhere      not on symbolic links, fifos and devices,
//	                    when the call returns; 64 KiB a value, 64 KiB of      as everywhere in Linux
//	                    names
//	trusted., security. kept as user.*, of all types of files; only root      EOPNOTSUPP for security.capability, ima, evm
//	xattr               sets both, and reads and lists trusted.*              and labels: the mount is nosuid and has no
//	                                                                          labels, so they would have no effect
//	POSIX ACL           EOPNOTSUPP: the root is 0700, so only the job's
//	                    user and root get in; an ACL could let in no other
//	                    user, and would cost the kernel a request per file
//	chattr, lsattr      nodump and noatime are kept, also by xfs_io           EOPNOTSUPP for others: immutable and append
//	                                                                          would cost a check at every change; ENOTTY
//	                                                                          in covers and kernel views
//	user.bivouac.layout of a directory: inherited by what is created in it;   of a file: only while it is empty and open
//	and .chunk          local means the node that creates the file            nowhere, else EBUSY
//	user.bivouac.copies 2: data is on two nodes at close and fsync, names     calls under way when a home is lost may fail,
//	                    and attributes when the call returns; the loss of     and may have taken effect; the same bytes
//	                    either is no error; old copies are never read         written by two nodes at once may differ
//	truncate            bytes that were cut off never come back; holes are    after the death of a writer that had not
//	                    zeros                                                 closed: bytes behind the end may appear
//	fallocate           also with KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE;       after ENOSPC a part may be allocated;
//	                    later writes there do not fail for want of space      zeroing is not atomic
//	SEEK_DATA, HOLE     exact for what was written here, or was closed or     allocated but unwritten space is a hole,
//	                    fsynced there                                         as on disks
//	FIEMAP              EOPNOTSUPP: FUSE has no such request; SEEK_DATA and
//	                    SEEK_HOLE find the data
//	copy_file_range     within a mount, of what a read returns                after a change there: up to the size that
//	                                                                          fstat returned here last
//	O_DIRECT, O_SYNC    bypass page cache, buffer, read-ahead; with O_SYNC    metadata: see fsync; with O_DIRECT alone
//	                    data is durable when the write returns                data has arrived, and is durable after fsync
//	st_blocks           the bytes on disk, if the file has a local layout     other files: as if they had no holes
//	                    here
//	rename              atomic between any directories, with EXCHANGE and     if a node dies before it answers: done or
//	                    NOREPLACE; replaces like unlink                       not done, never half
//	rename of a         into its own subtree is EINVAL, also if two moves     between parents: EHOSTDOWN while the home
//	directory           here and there at once would do it                    of the root is down
//	unlink, rename      processes that have the file open, here or there,     ESTALE if the name of a file over 1 MiB is
//	over a file         keep it: they read, write, truncate and fstat; its    replaced twice between lookup and open
//	                    space is freed by the last close, or the death of
//	                    the last node that has it open
//	rmdir of an open    creating in it is ENOENT; fstat returns what was      ESTALE if 8,192 other directories were
//	directory           seen here last, without links                         looked up since
//	mtime, ctime        set by the node that keeps the inode                  of writes: when that node learns of them;
//	                                                                          statx with AT_STATX_DONT_SYNC may be off
//	                                                                          after a change of attributes or a read
//	atime               set by utimensat only                                 reading does not change it
//	readdir             an entry that exists all the time is listed once,     after seekdir back over more than 1,024
//	                    whatever others do                                    changed entries: an approximate place; EIO
//	                                                                          at the end if a node is down that has some
//	                                                                          of the entries
//	a directory of      as any other; its names are spread over all nodes,    its link count and times lag by 0.1 s
//	very many entries   and a node that is down takes only its own            behind changes made there
//	fsync               the data is on the disks of the nodes that own it;    metadata survives the death of a daemon,
//	                    each descriptor open here then gets each loss of the  not of its machine
//	                    file reported once
//	statfs              the sum over the nodes that are up                    a second old
//	flock, fcntl        one process on all nodes holds the lock; a process    see lock.go
//	                    that dies releases it
//	signals             only one that kills the process ends a call, as on a  read-ahead of the kernel ends at the
//	                    disk; every one ends a wait for a lock (EINTR)        deadline of a call; of a process in
//	                                                                          another PID namespace every one ends a
//	                                                                          call that hangs
//	a node is down      EIO at once for what only it has; rm -rf removes the  until the map knows: at the deadline of a
//	                    names of what was lost with it                        call; rmdir also removes the name of a
//	                                                                          lost directory, whatever it held
//
// If the daemon here is killed and the next one takes the connection over (adopt.go), open files,
// directories, mappings and calls continue. EIO is returned once where writes may be lost, always where
// locks were held or the file has no name, and to a change of names or an append in flight.
//
// The kernel sends no request for syncfs(2) of such a mount: syncfs returns when mappings are
// written back. fsync makes a file durable.
//
// # Lock order
//
// Only the turns are held across a call to the client; a context can interrupt the wait for one.
//
//	cursor.turn, earlierFile.turn
//	cursors.mu
//	handles.mu
//	kernelSize.mu
//	creations.mu
//	backings.mu
//	pagecache.Table.mu
//	request.mu
package mount
