package rpc

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// cpu returns the CPU time of this process, which runs both ends.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// benchmark makes calls from concurrent callers and reports the CPU time of both ends per call.
func benchmark(b *testing.B, callers int, do func(caller int) error) {
	b.Helper()
	for i := range callers { // connections are made before the clock starts
		if err := do(i); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu(b)
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			var err error
			for n := i; n < b.N && err == nil; n += callers {
				err = do(i)
			}
			errs <- err
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-start).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
}

func BenchmarkSmall(b *testing.B) {
	attr := wire.AttrResp{Attr: metadata.Attr{Ino: 1, Mode: 0o100644, Size: 1}}
	getattr := func(_ context.Context, req *Request, resp *Response) error {
		var m wire.InoReq
		if err := wire.Parse(req.Body, &m); err != nil {
			return err
		}
		resp.Body = &attr
		return nil
	}
	for _, inline := range []bool{true, false} {
		for _, callers := range []int{1, 4, 16} {
			b.Run(fmt.Sprintf("inline=%v/callers=%d", inline, callers), func(b *testing.B) {
				_, addr := startServer(b, map[wire.Op]Handler{wire.OpGetattr: getattr},
					func(c *ServerConfig) { c.Inline = func(wire.Op) bool { return inline } })
				to := startPeers(b, addr, nil).To(3)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				benchmark(b, callers, func(int) error {
					return to.Do(ctx, &Call{Op: wire.OpGetattr, Body: &wire.InoReq{Ino: 5}, Reply: new(wire.AttrResp)})
				})
			})
		}
	}
}

const sampleSize = 110 << 10 // a typical image

func BenchmarkRead(b *testing.B) {
	f := tempFile(b, sampleSize)
	memory := make([]byte, sampleSize)
	handlers := map[string]Handler{
		"sendfile": readHandler(f),
		"pread": func(_ context.Context, _ *Request, resp *Response) error {
			resp.Data = make([]byte, sampleSize)
			_, err := f.ReadAt(resp.Data, 0)
			return err
		},
		"memory": func(_ context.Context, _ *Request, resp *Response) error {
			resp.Data = memory
			return nil
		},
	}
	for _, how := range []string{"sendfile", "pread", "memory"} {
		for _, inline := range []bool{true, false} {
			for _, callers := range []int{1, 4} {
				b.Run(fmt.Sprintf("%s/inline=%v/callers=%d", how, inline, callers), func(b *testing.B) {
					_, addr := startServer(b, map[wire.Op]Handler{wire.OpRead: handlers[how]},
						func(c *ServerConfig) { c.Inline = func(wire.Op) bool { return inline } })
					to := startPeers(b, addr, nil).To(3)
					body := &wire.ReadReq{Ino: 5, Len: sampleSize}
					into := make([][]byte, callers)
					for i := range into {
						into[i] = make([]byte, sampleSize)
					}
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					b.SetBytes(sampleSize)
					benchmark(b, callers, func(i int) error {
						c := Call{Op: wire.OpRead, Body: body, Into: into[i]}
						return to.Do(ctx, &c)
					})
				})
			}
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	taken := func(context.Context, *Request, *Response) error { return nil }
	for _, callers := range []int{1, 4} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			_, addr := startServer(b, map[wire.Op]Handler{wire.OpWrite: taken}, nil)
			to := startPeers(b, addr, nil).To(3)
			data := [][]byte{make([]byte, wire.MaxData)}
			body := &wire.WriteReq{Ino: 5}
			b.SetBytes(wire.MaxData)
			benchmark(b, callers, func(int) error {
				return to.Do(context.Background(), &Call{Op: wire.OpWrite, Body: body, Data: data})
			})
		})
	}
}

func BenchmarkHandshake(b *testing.B) {
	_, addr := startServer(b, echoes, nil)
	p := startPeers(b, addr, nil)
	for b.Loop() {
		conn, _, err := p.connect(context.Background(), 3, wire.PurposeMeta)
		if err != nil {
			b.Fatal(err)
		}
		_ = conn.Close()
	}
}
