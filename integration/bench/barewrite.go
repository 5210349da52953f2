package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// bareParts is the number of files that the bare server writes, as a file striped over all nodes has as many objects.
const bareParts = nodes

// bareWrites has a client send size bytes to a server that writes them to files on the disk.
func (b *bench) bareWrites(size int64) (c cost, err error) {
	dir, err := os.MkdirTemp(b.home, "sink")
	if err != nil {
		return cost{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := spawn("bare-sink", dir)
	if err != nil {
		return cost{}, err
	}
	defer server.end()
	client, err := spawn("bare-source", dir, strconv.FormatInt(size/bareParts, 10))
	if err != nil {
		return cost{}, err
	}
	return charged([]int{server.cmd.Process.Pid}, func() (usage, error) { return together([]*child{client}) })
}

// sinkAddr returns the file in which a directory's server publishes its address.
func sinkAddr(dir string) string { return filepath.Join(dir, "addr") }

// bareSink is the server. It takes frames (8 bytes of a file's number, 8 bytes of length, the file) and answers each
// with its length when the file is closed.
func bareSink(dir string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := os.WriteFile(sinkAddr(dir), []byte(l.Addr().String()), 0o600); err != nil {
		return err
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if err := bareTake(conn, dir); err != nil {
			fmt.Fprintln(os.Stderr, "bare sink:", err)
		}
	}()
	ready()
	awaitInput()
	return l.Close()
}

func bareTake(conn net.Conn, dir string) error {
	buf := make([]byte, piece)
	for {
		if _, err := io.ReadFull(conn, buf[:16]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		n, size := binary.LittleEndian.Uint64(buf), binary.LittleEndian.Uint64(buf[8:])
		if err := bareStore(conn, filepath.Join(dir, strconv.FormatUint(n, 10)), int64(size), buf); err != nil {
			return err
		}
		if _, err := conn.Write(binary.LittleEndian.AppendUint64(nil, size)); err != nil {
			return err
		}
	}
}

func bareStore(conn net.Conn, path string, size int64, buf []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for size > 0 && err == nil {
		p := buf[:min(size, int64(len(buf)))]
		if _, err = io.ReadFull(conn, p); err == nil {
			_, err = f.Write(p)
		}
		size -= int64(len(p))
	}
	return errors.Join(err, f.Close())
}

// bareSource is a worker that sends the files in sequence.
func bareSource(dir string, size int64) error {
	addr, err := os.ReadFile(sinkAddr(dir))
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", string(addr))
	if err != nil {
		return err
	}
	defer conn.Close()
	p := noise(rand.New(rand.NewPCG(3, 4)), piece)
	return timed(func() error {
		for i := range uint64(bareParts) {
			if err := bareSend(conn, i, size, p); err != nil {
				return err
			}
		}
		return nil
	})
}

func bareSend(conn net.Conn, file uint64, size int64, p []byte) error {
	head := binary.LittleEndian.AppendUint64(nil, file)
	if _, err := conn.Write(binary.LittleEndian.AppendUint64(head, uint64(size))); err != nil {
		return err
	}
	for left := size; left > 0; left -= int64(len(p)) {
		if _, err := conn.Write(p[:min(left, int64(len(p)))]); err != nil {
			return err
		}
	}
	var answer [8]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(answer[:]); n != uint64(size) {
		return fmt.Errorf("file %d: %d bytes of %d taken: %w", file, n, size, io.ErrShortWrite)
	}
	return nil
}
