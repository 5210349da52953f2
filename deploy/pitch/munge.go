package pitch

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
)

const (
	mungeProgram   = "/usr/bin/munge"
	unmungeProgram = "/usr/bin/unmunge"
	// credentialTTL is how long a credential is valid, in seconds, which bounds the clock difference between hosts.
	credentialTTL = "60"
	mungeTimeout  = 5 * time.Second
	// maxCredential bounds the bytes read from the network.
	maxCredential = 4096
)

// envelope is the payload of the credential that carries a job key. It names the job, so that a credential of another
// job is useless.
type envelope struct {
	Job     string `json:"job"`
	Restart int    `json:"restart"`
	Key     string `json:"key"`
}

// sealer makes and opens credentials that only root can open. Tests without munged use another implementation.
type sealer interface {
	seal(ctx context.Context, payload []byte) ([]byte, error)
	// open returns the payload and the uid that sealed it.
	open(ctx context.Context, credential []byte) (payload []byte, uid string, err error)
}

// munge is the sealer of every Slurm cluster with auth/munge.
type munge struct{ socket string }

func (m munge) seal(ctx context.Context, payload []byte) ([]byte, error) {
	return m.run(ctx, payload, mungeProgram, "--restrict-uid=0", "--ttl="+credentialTTL)
}

func (m munge) open(ctx context.Context, credential []byte) ([]byte, string, error) {
	out, err := m.run(ctx, credential, unmungeProgram, "--numeric", "--keys=STATUS,UID")
	if err != nil {
		return nil, "", err
	}
	head, payload, ok := bytes.Cut(out, []byte("\n\n"))
	if !ok {
		return nil, "", errors.New("unmunge: no payload")
	}
	for line := range strings.Lines(string(head)) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == "UID" {
			return payload, strings.TrimSpace(v), nil
		}
	}
	return nil, "", errors.New("unmunge: no uid")
}

// run passes in to the program by standard input, because every user can see arguments.
func (m munge) run(ctx context.Context, in []byte, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, mungeTimeout)
	defer cancel()
	if m.socket != "" {
		args = append(args, "--socket="+m.socket)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env, cmd.Dir = []string{}, "/"
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, oneLine(msg.String()))
	}
	return out.Bytes(), nil
}

// sealKey makes the credential for one request.
func sealKey(ctx context.Context, s sealer, job string, restart int, key rpc.Key) ([]byte, error) {
	b, err := json.Marshal(envelope{job, restart, hex.EncodeToString(key[:])})
	if err != nil {
		return nil, err
	}
	return s.seal(ctx, b)
}

// openKey opens the credential and checks that root sealed it for this start of the job.
func openKey(ctx context.Context, s sealer, credential []byte, job string, restart int) (rpc.Key, error) {
	payload, uid, err := s.open(ctx, credential)
	if err != nil {
		return rpc.Key{}, err
	}
	if uid != "0" {
		return rpc.Key{}, fmt.Errorf("the credential was made by uid %.20q, not by root", uid)
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	var e envelope
	if err := d.Decode(&e); err != nil {
		return rpc.Key{}, errors.New("the credential contains no key")
	}
	if e.Job != job || e.Restart != restart {
		return rpc.Key{}, fmt.Errorf("the credential is of job %.20q, restart %d", e.Job, e.Restart)
	}
	return parseKey(e.Key)
}

func parseKey(text string) (rpc.Key, error) {
	var k rpc.Key
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(k) {
		return rpc.Key{}, fmt.Errorf("the job key is not %d hex digits", 2*len(k))
	}
	copy(k[:], b)
	if k == (rpc.Key{}) {
		return rpc.Key{}, errors.New("the job key is all zeros")
	}
	return k, nil
}

// readCredential reads to the end, or up to the maximum size of a credential.
func readCredential(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxCredential+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0:
		return nil, io.ErrUnexpectedEOF
	case len(b) > maxCredential:
		return nil, fmt.Errorf("more than %d bytes", maxCredential)
	case !bytes.HasPrefix(b, []byte("MUNGE:")):
		return nil, errors.New("not a credential")
	}
	return b, nil
}
