// Package mounts reads the mount table of this namespace and mounts over datasets.
//
// Reading the table never accesses a mount, unlike stat(2), so a dead mount cannot block the reader. Operations that
// must access a mount, such as mounting a Cover or a View, run in a process of their own, the helper.
//
// # One mount for each dataset
//
// A dataset of small files has one mount, a View or a Cover, over the directory data/NAME. It is mounted before
// programs see the name, and stays until the dataset is removed. If it were mounted later, a tree walk that goes up by
// ".." would find another directory than it left, and GNU find and du would fail.
//
//	daemon: manifest loaded; lookups of data/NAME are ENOENT (package mount, gate)
//	  │ starts a helper, serves its connection, sends it the tree
//	helper: makes the mount; looks data/NAME up with HelperGID, which only it has
//	  │ from now on other lookups of the name wait
//	helper: moves the mount over the directory, reports, ends
//	daemon: answers the lookups; reports the dataset as loaded to the leader
//
// The dataset leaves the phase Publishing, and bivouac wait returns, when all nodes have reached this point. If
// mounting fails, the dataset is read through the main mount. After a daemon restart, datasets that other nodes show
// are visible at once, and their mounts follow.
//
// # Files that arrive later
//
// A view is made before the files of the dataset are fetched. Overlayfs looks for a file's data at its first open:
// first in the store directories, then in the connection, where the read fetches the file. It keeps the result until
// the kernel evicts the file's inode, but never caches that a store had no data (Linux 6.18). The daemon writes an
// object in place, over some time, so views do not search the objects, but links to them (chunkstore.WholeDir): when a
// fill has stored and recorded a file, it creates the link before it releases reads that wait for the file; the link is
// removed with its object. So:
//
//   - A file that was opened before its bytes were here is read through the connection, as through a
//     cover, until its inode is evicted; every other one by the kernel alone.
//   - An object that is removed takes space while a view has it open. When replicas give way to scratch, or a
//     file is damaged and cannot be repaired, the daemon detaches the view, and makes it again.
//
// # Opens in a view
//
// No daemon sees a read that the kernel serves alone. So the helper of a view also sends a descriptor of its root, and
// the daemon sets inotify watches for opens in the directories of the view (Opens), with the user's rights and limits.
// The path from that descriptor leads only through the overlay and the image; the path from the mount would ask the
// daemon itself, which could then not be killed. A new daemon makes a new view and new watches. Every open is counted,
// unless there are more than 10,000 per second in the view; then watches are set only part of the time. FUSE for one
// file in 64 would slow these reads down, and fanotify would need root all the time.
//
// # Views
//
// The helper of a view is root and works for a user. These rules keep the two apart:
//
//   - The helper writes the EROFS image itself, record by record, from the user's
//     description of the tree, which package erofs checks. The image is a file without a
//     name, and is read through a loop device that only root can open: the user cannot write
//     to what the kernel parses.
//   - The path of a file's data follows from its inode number alone (ObjectPath), in
//     directories that overlayfs never leaves: in data layers it follows no symbolic link and
//     crosses no mount.
//   - A thread with the user's credentials, and no capability that overrides file modes
//     (dropCredentials), opens those layers and makes the overlayfs, which keeps the
//     credentials for its own lookups. A replaced object leads only to plain files
//     that the user could read anyway; a link, device or FIFO is an error, for root too.
//   - Names and bytes of the tree are bounded, and so is the helper's time.
//
// Image and connection are mounted in a mount namespace that the helper leaves; after that only the view holds them. So
// unmounting the view, or the mount on which it lies, removes everything: overlayfs, image, loop device and connection.
// A helper that fails or is killed leaves nothing.
package mounts
