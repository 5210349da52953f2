// Package pitch sets a job up on one node and removes it: the prolog, the keeper and the epilog, which run as root. Its
// one idea: the names of everything that it makes for a job follow from the job id, and a pid file with the start time
// records every process. So a later process (the keeper, the epilog, the prolog of another job after a power failure)
// can remove all of it without having seen it made.
//
// It never accesses the mount: a stat there can hang with the daemon. Below a directory that the user owns it follows
// no symbolic link, and enters no mount, which may hang, too: it detaches the mount first, or gives up
// (mounts.Beneath). Its input is bounded: one credential from the network, when it fetches the job key; from the user a
// spec, checked twice; from the daemon, which runs as the user, the notes on the heartbeat connection, requests without
// descriptors, and metrics, of which it exports only samples. It does not know what a daemon serves.
//
// # On a node
//
//	<run>/.lock               0600: the lock of prologs
//	<run>/<jobid>/            root 0755
//	    state                 one line: "starting", "ready MOUNTPOINT", "failed REASON"
//	    keeper.pid daemon.pid "pid starttime"
//	    record.json           0600: what the prolog decided
//	    job.json              0400, the user's: the daemon's job file
//	    keeper.sock           0600: "leave SECONDS\n", answered when all is removed
//	    d/                    0700, the user's: the daemon's control socket
//	<store>/<jobid>.<restart> 0700, the user's, in each store
//	<store>/.kept.<uid>.<expiry>.<jobid>.<restart>
//	                          0700, the user's: with keep, datasets that a job has left
//	<mount>/<jobid>           the mountpoint
//	<metrics_textfile>/bivouac_<jobid>.prom
//	<log>/<jobid>.log         kept if something went wrong
//
// # From prolog to epilog
//
// Prolog checks the node and the spec, removes the remains of dead jobs, makes the directories, and starts the keeper.
// The keeper gets the job key, mounts, runs the daemon as the user, writes the state, and supervises the daemon. Epilog
// tells the keeper to leave; without a live keeper it removes everything itself. A keeper whose job failed stays until
// the epilog, so that a run directory without a live keeper is always stale.
//
// With keep, teardown renames the datasets that the daemon set apart when it left, before it wipes the store. The next
// prolog of the same user moves them into the job's store; any other prolog, and each prolog and epilog after the
// expiry, removes them. Root checks type, owner and device of such a directory by its descriptor, once the user can no
// longer replace it.
//
// The watchdog kills a daemon that stops answering. When a daemon has died, a new one starts on the same stores with
// the same key, and calls wait for it. The keeper holds the FUSE connection and the memory in which the daemon has
// recorded its open files (fsclient/handover): the new daemon takes both over, and open files continue to work. Where
// that is impossible, a new mount replaces the old one: before Linux 6.9, which cannot resend the requests that the
// dead daemon had read; if a daemon does not die or has not begun to serve; at the third death in a row; and if covers
// or kernel views lie over the mount. Processes that the daemon has started, as a user can make it do, end with it: the
// keeper is the parent of orphans below it.
package pitch
