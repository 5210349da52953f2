// Package local pitches a whole job on this one machine, without Slurm, a
// server or a configuration: several daemons, each with its own stores and its
// own mount, that meet over loopback. Its one idea is that what was started is
// written down with process ids and start times, so that Down finds all of it,
// and only it, also after everything was killed.
//
// The directory of a job D holds D/node0, D/node1, … (the mounts) and
// D/.bivouac (everything else). Nothing outside D is touched.
package local
