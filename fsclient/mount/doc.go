// Package mount serves a fsclient.Client to the kernel by FUSE.
package mount
