// Package doctor checks whether a node, or a submit host, meets the requirements of Bivouac: its kernel, its drives,
// munge, Slurm and the network. Its one idea is that every finding has a remedy. It changes nothing, except for files
// that the speed probe writes into the store and removes.
//
// Host abstracts the machine: kernel files, and a few programs.
package doctor
