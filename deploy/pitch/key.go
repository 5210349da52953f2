package pitch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/rpc"
)

func newKey() (rpc.Key, error) {
	var k rpc.Key
	_, err := rand.Read(k[:])
	return k, err
}

// SubmissionKey returns a job key for the submission to hand over, in hex, for clusters without munge. With munge it
// returns "".
func SubmissionKey(site Site) (string, error) {
	if site.Munge == MungeRequire || site.Munge == MungeAuto && hasMunge(site) {
		return "", nil
	}
	k, err := newKey()
	return hex.EncodeToString(k[:]), err
}

// hasMunge reports whether a credential can be made on this host.
func hasMunge(site Site) bool {
	if _, err := os.Stat(mungeProgram); err != nil {
		return false
	}
	_, err := munge{site.MungeSocket}.run(context.Background(), nil, mungeProgram, "--no-input")
	return err == nil
}

const (
	// sealers is how many credentials are made at once; a bound keeps a burst of connections cheap for the first host.
	sealers = 4
	// maxWaiting is how many connections may wait for a sealer.
	maxWaiting   = 1024
	dialTimeout  = time.Second
	fetchTimeout = 5 * time.Second
	retryEvery   = 100 * time.Millisecond
)

// meeting names the exchange of one job's key.
type meeting struct {
	job     string
	restart int
	addrs   []string // candidates on the first host
	sealer  sealer
	log     *logrus.Entry
}

// keyServer sends the sealed key to every client: only root on a node of the cluster can open it.
type keyServer struct {
	meeting
	key    rpc.Key
	l      net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{} // one for each sealer
	wait   chan struct{} // one for each connection
	wg     sync.WaitGroup
}

// serveKey starts to hand out key at the first candidate port that is free, until ctx ends.
func serveKey(ctx context.Context, m meeting, key rpc.Key) (*keyServer, error) {
	var errs []error
	for _, a := range m.addrs {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", net.JoinHostPort("", port))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s := &keyServer{meeting: m, key: key, l: l, slots: make(chan struct{}, sealers), wait: make(chan struct{}, maxWaiting)}
		s.ctx, s.cancel = context.WithCancel(ctx)
		context.AfterFunc(s.ctx, func() { _ = l.Close() })
		s.wg.Add(1)
		go s.accept()
		return s, nil
	}
	return nil, fmt.Errorf("no port is free for handing out the job key: %w: raise ports: in the site's configuration", errors.Join(errs...))
}

// close stops handing out keys, and waits for requests in progress.
func (s *keyServer) close() {
	s.cancel()
	_ = s.l.Close() // ctx may have closed it
	s.wg.Wait()
}

func (s *keyServer) accept() {
	defer s.wg.Done()
	for {
		conn, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the peer hung up
			select {
			case <-s.ctx.Done():
			case <-time.After(retryEvery):
			}
			continue
		}
		select {
		case s.wait <- struct{}{}:
		default:
			_ = conn.Close() // too many at once: the node retries
			continue
		}
		s.wg.Go(func() {
			defer func() { <-s.wait }()
			defer conn.Close()
			if err := s.answer(conn); err != nil && s.ctx.Err() == nil {
				s.log.WithError(err).WithField("peer", conn.RemoteAddr()).Warn("the job key was not handed out: that node asks again")
			}
		})
	}
}

func (s *keyServer) answer(conn net.Conn) error {
	ctx, cancel := context.WithTimeout(s.ctx, fetchTimeout)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	b, err := sealKey(ctx, s.sealer, s.job, s.restart, s.key)
	<-s.slots
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(fetchTimeout)) // a failure shows in Write
	_, err = conn.Write(b)
	return err
}

// fetchKey asks the first host's candidates in turn until ctx ends. It refuses an answer that is not root's credential
// for this job, and tries the next candidate.
func fetchKey(ctx context.Context, m meeting) (rpc.Key, error) {
	refused := 0
	var last error
	t := time.NewTicker(retryEvery)
	defer t.Stop()
	for {
		for _, a := range m.addrs {
			key, connected, err := m.fetch(ctx, a)
			if err == nil {
				return key, nil
			}
			if ctx.Err() != nil {
				break
			}
			last = err
			if connected {
				refused++
				m.log.WithError(err).WithFields(logrus.Fields{"addr": a, "refused": refused}).Warn("a node did not hand out the job key: trying the next one")
			}
		}
		select {
		case <-ctx.Done():
			host, _, _ := net.SplitHostPort(m.addrs[0])
			if last == nil {
				last = ctx.Err()
			}
			return rpc.Key{}, fmt.Errorf("the first host %s did not hand out the job key in time: %w", host, last)
		case <-t.C:
		}
	}
}

func (m meeting) fetch(ctx context.Context, addr string) (key rpc.Key, connected bool, err error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return rpc.Key{}, false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	b, err := readCredential(conn)
	if err != nil {
		return rpc.Key{}, true, err
	}
	key, err = openKey(ctx, m.sealer, b, m.job, m.restart)
	return key, true, err
}
