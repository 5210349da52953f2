// Package pagecache records the version of a live file to which the pages in the kernel's cache belong, so that an open
// keeps the pages of a file that has not changed. Its one idea is that the home's st_ctime is a version: it grows with
// every change of an inode (package pebblestore).
//
//	open     home: version v ── Fresh(v) ── the kernel keeps its pages
//	                        └── else ────── the kernel drops them while it opens the file
//	                                        first request for the open file: Dropped(v)
//
// Every page is then of version v, or newer: the kernel has requested it after the home had answered v, and writers
// report their writes to the home after the owners of the data have them. Dropped waits for that first request because
// the reply to the open may still be on its way to the kernel: another open must not keep pages that this one is about
// to drop.
//
// While a file is open, the kernel validates its pages before each read, by an st_mtime: Shown.
//
// It does no I/O, and must not know the kernel's protocol.
package pagecache
