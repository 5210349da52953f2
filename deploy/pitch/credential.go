package pitch

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// idProgram also finds groups in LDAP.
	idProgram = "/usr/bin/id"
	idTimeout = 10 * time.Second
)

// credential returns the user's credential with all groups that the system knows.
func credential(uid, gid uint32) (*syscall.Credential, error) {
	c := &syscall.Credential{Uid: uid, Gid: gid}
	ctx, cancel := context.WithTimeout(context.Background(), idTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, idProgram, "-G", "--", strconv.FormatUint(uint64(uid), 10))
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=" + safePath}, "/", time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("groups of uid %d: %w: run id -G %d on this node", uid, err, uid)
	}
	for f := range strings.FieldsSeq(string(out)) {
		g, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("groups of uid %d: %w", uid, err)
		}
		c.Groups = append(c.Groups, uint32(g))
	}
	return c, nil
}
