// Package pitch is the privileged life of a job on one node: what the prolog,
// the keeper and the epilog do as root. Its one idea is that everything which
// is made for a job has a name computed from the job's number, and every
// process is written down with its start time, so that whoever comes later
// (the keeper, the epilog, the prolog of another job after a power failure)
// can take all of it away without having seen it made.
//
// It never looks into the mount: a stat there can hang with the daemon behind
// it. It follows no symbolic link below a directory that the user owns. From
// the network it reads one bounded credential, when the job key is fetched;
// from the user a bounded spec, checked twice; from the daemon, which runs as
// the user, the notes on the leash. It does not know what a daemon serves.
//
// # On a node
//
//	<run>/.lock               0600: what prologs lock
//	<run>/<jobid>/            root 0755
//	    state                 one line: "starting", "ready MOUNTPOINT", "failed REASON"
//	    keeper.pid daemon.pid "pid starttime"
//	    record.json           0600: what the prolog decided
//	    job.json              0400, the user's: the daemon's job file
//	    keeper.sock           0600: "leave SECONDS\n", answered when all is gone
//	    d/                    0700, the user's: the daemon's control socket
//	<store>/<jobid>.<restart> 0700, the user's, in each store
//	<mount>/<jobid>           the mountpoint
//	<log>/<jobid>.log         stays if something went wrong
//
// # The life of a job
//
// Prolog checks the node and the spec, clears what dead jobs left, makes the
// directories, and starts the keeper. The keeper gets the job key, mounts,
// runs the daemon as the user, writes the state, watches. Epilog tells the
// keeper to leave; where there is no keeper any more it takes everything away
// by itself. A keeper whose job failed stays until the epilog, so that a run
// directory without a live keeper is always a stale one.
//
// The keeper keeps no copy of the FUSE descriptor that the daemon serves: when
// the daemon dies, the kernel aborts the connection at once and nothing hangs.
// A daemon that stops answering is aborted and killed by the watchdog. In both
// cases a fresh mount takes the place of the old and a new daemon starts on
// the same stores with the same key. What a daemon has started, which as its user's
// process it can be made to, goes with it: the keeper is the parent of orphans below it.
package pitch
