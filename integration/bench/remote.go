package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
)

var remoteFigure = figure{
	name: "remote",
	about: "open, read and close of the small files of a dataset that are whole on other nodes, by two processes on node 0, none of them in the caches of the " +
		"mount; beside a bare client that asks a bare server for them over loopback, or the veth pairs that the daemons use (16-byte requests, bodies by sendfile), without FUSE. Cold is through the " +
		"main mount, whose names a remount takes away; the kernel view above it has them still, and lacks the pages alone",
	run: readRemote,
}

const armBare = "bare RPC"

func readRemote(ctx context.Context, b *bench) error {
	d, err := b.staged(ctx)
	if err != nil {
		return err
	}
	var files []sample
	for n := 1; n < nodes; n++ {
		files = append(files, d.on(n)...)
	}
	objects := b.camp.objects(files)
	if _, err := b.readAll(objects, 2); err != nil { // the disk's cache is warm from here on
		return err
	}
	mount := b.camp.state.Nodes[0].Mount
	paths := through(mount, files)
	cold, coldIn := paths, mount
	if d.below != "" {
		cold, coldIn = d.allBelow(files), d.below
	}
	daemons := b.camp.pids()
	const rate, time = "files, caches of the mount cold", "processor time of a file, all sides"
	const view = "files, no pages in the kernel view"
	err = b.interleave(ctx,
		arm{armBivouac, func(context.Context, int) error {
			if err := forget(coldIn); err != nil {
				return err
			}
			c, err := charged(daemons, func() (usage, error) { return b.readAll(cold, 2) })
			b.take(rate, "/s", armBivouac, c.rate(len(files)))
			b.take(time, "us", armBivouac, c.micros(len(files)))
			if err != nil || d.below == "" {
				return err
			}
			if err := forgetPages(paths); err != nil {
				return err
			}
			c, err = charged(daemons, func() (usage, error) { return b.readAll(paths, 2) })
			b.take(view, "/s", armBivouac, c.rate(len(files)))
			return err
		}},
		arm{armBare, func(context.Context, int) error {
			c, err := b.bareReads(objects, 2)
			b.take(rate, "/s", armBare, c.rate(len(files)))
			if d.below != "" {
				b.take(view, "/s", armBare, c.rate(len(files)))
			}
			b.take(time, "us", armBare, c.micros(len(files)))
			return err
		}})
	if err != nil {
		return err
	}
	b.aim(rate, "/s", ">= 0.40")
	return nil
}

// bareReads has this many clients read from one server.
func (b *bench) bareReads(paths []string, clients int) (cost, error) {
	list := b.home + "/bare.list"
	if err := writeLines(list, paths); err != nil {
		return cost{}, err
	}
	sock := b.home + "/bare.addr"
	wrap, host := b.in(1)
	server, err := spawnIn(wrap, "bare-server", list, sock, host)
	if err != nil {
		return cost{}, err
	}
	defer server.end()
	wrap, _ = b.in(0)
	cs, err := spawnAllIn(wrap, clients, func(i int) ([]string, error) {
		return []string{"bare-client", sock, strconv.Itoa(i * len(paths) / clients), strconv.Itoa((i + 1) * len(paths) / clients)}, nil
	})
	if err != nil {
		return cost{}, err
	}
	return charged([]int{server.cmd.Process.Pid}, func() (usage, error) { return together(cs) })
}

// bareServer answers requests (8 bytes of a file's number, 8 unused bytes) with 8 bytes of length and the file, by
// sendfile.
func bareServer(list, addr, host string) error {
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	paths := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		return err
	}
	if err := os.WriteFile(addr, []byte(l.Addr().String()), 0o600); err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if err := bareServe(conn.(*net.TCPConn), paths); err != nil {
					fmt.Fprintln(os.Stderr, "bare server:", err)
				}
			}()
		}
	}()
	ready()
	awaitInput()
	return l.Close()
}

func bareServe(conn *net.TCPConn, paths []string) error {
	in := bufio.NewReader(conn)
	var q [16]byte
	for {
		if _, err := io.ReadFull(in, q[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		f, err := os.Open(paths[binary.LittleEndian.Uint64(q[:])])
		if err != nil {
			return err
		}
		st, err := f.Stat()
		if err == nil {
			_, err = conn.Write(binary.LittleEndian.AppendUint64(nil, uint64(st.Size())))
		}
		if err == nil {
			_, err = io.Copy(conn, f) // sendfile
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

func bareWorker(args []string) error {
	first, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	last, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	return bareClient(args[0], first, last)
}

// bareClient is a worker that requests the files from first up to last.
func bareClient(addr string, first, last uint64) error {
	b, err := os.ReadFile(addr)
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", string(b))
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 4<<20)
	return timed(func() error {
		for i := first; i < last; i++ {
			q := binary.LittleEndian.AppendUint64(make([]byte, 0, 16), i)
			if _, err := conn.Write(q[:16]); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, buf[:8]); err != nil {
				return err
			}
			for left := int(binary.LittleEndian.Uint64(buf)); left > 0; {
				n := min(left, len(buf))
				if _, err := io.ReadFull(conn, buf[:n]); err != nil {
					return err
				}
				left -= n
			}
		}
		return nil
	})
}
