// Package local pitches a whole job on this one machine, without Slurm, a server or a configuration: several daemons,
// each with its own stores and its own mount, that communicate over loopback. Its one idea is that every process
// started is recorded with its process id and start time, so that Down finds all of them, and no others, even after
// everything was killed.
//
// The directory of a job D holds D/node0, D/node1, … (the mounts) and
// D/.bivouac (everything else). Nothing outside D is touched.
package local
