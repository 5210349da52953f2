package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
)

var rpcFigure = figure{
	name: "rpc",
	about: "the small files of a dataset that are whole on node 1, read by two clients of package rpc from one server of it and the data store of that node, " +
		"over loopback, without FUSE; beside the bare client and server of the figure remote",
	run: readRPC,
}

// rpcAim is the target for the processor time of both ends relative to the bare pair.
const rpcAim = "<= 1.3"

func readRPC(ctx context.Context, b *bench) error {
	d, err := b.staged(ctx)
	if err != nil {
		return err
	}
	files := d.on(1)
	objects := b.camp.objects(files)
	var asked []rpcFile
	for _, s := range files {
		asked = append(asked, rpcFile{Ino: s.ino, Size: s.size})
	}
	if _, err := b.readAll(objects, 2); err != nil { // the disk's cache is warm from here on
		return err
	}
	const rate, time = "files", "processor time of a file, both ends"
	side := func(arm string, run func() (cost, error)) func(context.Context, int) error {
		return func(context.Context, int) error {
			c, err := run()
			b.take(rate, "/s", arm, c.rate(len(files)))
			b.take(time, "us", arm, c.micros(len(files)))
			return err
		}
	}
	err = b.interleave(ctx,
		arm{armBivouac, side(armBivouac, func() (cost, error) { return b.rpcReads(asked, b.camp.store(1), 2) })},
		arm{armBare, side(armBare, func() (cost, error) { return b.bareReads(objects, 2) })})
	b.aim(time, "us", rpcAim)
	return err
}

// rpcReads has this many clients read from one server of a store.
func (b *bench) rpcReads(files []rpcFile, store string, clients int) (cost, error) {
	addr := filepath.Join(b.home, "rpc.addr")
	server, err := spawn("rpc-server", addr, store)
	if err != nil {
		return cost{}, err
	}
	defer server.end()
	cs, err := spawnAll(clients, func(i int) ([]string, error) {
		var lines []string
		for _, f := range files[i*len(files)/clients : (i+1)*len(files)/clients] {
			j, err := json.Marshal(f)
			if err != nil {
				return nil, err
			}
			lines = append(lines, string(j))
		}
		list, err := b.list(lines)
		return []string{"rpc-client", addr, list}, err
	})
	if err != nil {
		return cost{}, err
	}
	return charged([]int{server.cmd.Process.Pid}, func() (usage, error) { return together(cs) })
}

// rpcFile is a line of a client's list.
type rpcFile struct {
	Ino  metadata.Ino
	Size int64
	Off  int64 // offset of the data
}

const (
	rpcJob                  = "bench"
	rpcSelf metadata.NodeID = 1
)

var rpcKey = rpc.Key{1} // for a job of two processes on one machine

// rpcServer is a process that answers like a daemon.
func rpcServer(addr, dir string) error {
	store, err := chunkstore.Open(chunkstore.Config{Dirs: []string{dir}})
	if err != nil {
		return err
	}
	defer store.Close()
	s, err := rpc.NewServer(rpc.ServerConfig{
		Key: rpcKey, Job: rpcJob, Self: rpcSelf,
		Handlers:       map[wire.Op]rpc.Handler{wire.OpRead: lendFrom(store)},
		InlineWhenIdle: func(op wire.Op) bool { return op == wire.OpRead },
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1) // for its end
	go func() { served <- s.Serve(l) }()
	if err := os.WriteFile(addr, []byte(l.Addr().String()), 0o600); err != nil {
		return err
	}
	ready()
	awaitInput()
	if err := s.Close(); err != nil {
		return err
	}
	return <-served
}

func lendFrom(store *chunkstore.Store) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		var q wire.ReadReq
		if err := wire.Parse(r.Body, &q); err != nil {
			return err
		}
		f, done, err := store.Lend(context.WithoutCancel(ctx), q.Ino)
		resp.File, resp.Off, resp.Len, resp.Done = f, q.Off, int64(q.Len), done
		return err
	}
}

// rpcClient is a worker that reads all files of a list.
func rpcClient(addr, list string) error {
	to, err := os.ReadFile(addr)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var files []rpcFile
	for line := range strings.Lines(string(b)) {
		var f rpcFile
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			return err
		}
		files = append(files, f)
	}
	p, err := rpc.NewPeers(rpc.PeersConfig{
		Key: rpcKey, Job: rpcJob, Self: rpc.NoNode, Addrs: func(metadata.NodeID) []string { return []string{string(to)} },
	})
	if err != nil {
		return err
	}
	defer p.Close()
	data := remote.NewData(p.To(rpcSelf))
	buf := make([]byte, 4<<20)
	return timed(func() error {
		for _, f := range files {
			n, err := data.ReadAt(context.Background(), f.Ino, buf[:f.Size], f.Off)
			if err == nil && int64(n) != f.Size {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return fmt.Errorf("inode %v: %d bytes of %d: %w", f.Ino, n, f.Size, err)
			}
		}
		return nil
	})
}
