// Package doctor checks whether a node, or a submit host, has what Bivouac needs: its kernel, its
// drives, munge, Slurm and the network. Its one idea is that every finding comes with a remedy.
// It changes nothing, but for files that the speed probe writes into the store and removes.
//
// The world is in Host: files of the kernel, and a few programs.
package doctor
