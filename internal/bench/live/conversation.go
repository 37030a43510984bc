package live

import (
	"fmt"

	"lmwarden/internal/bench"
)

// conversation is what the System remembers of one until the end of its step.
type conversation struct {
	identity
	answers []string // by turn, as in a JSON string; empty where none came
}

// identity is how Claude Code names a conversation: the session by one id, and a
// sub-agent by a second one beside it. The zero identity is of a request that
// belongs to none.
type identity struct {
	session            string
	agent, parentAgent string
}

// headers hands out the headers of a request.
func (i identity) headers(line func(name, value string)) {
	if i.session == "" {
		// So the client marks titles and the like.
		line("X-Claude-Code-Request-Class", "auxiliary")
		return
	}
	line("X-Claude-Code-Session-Id", i.session)
	if i.agent != "" {
		line("X-Claude-Code-Agent-Id", i.agent)
	}
	if i.parentAgent != "" {
		line("X-Claude-Code-Parent-Agent-Id", i.parentAgent)
	}
}

// conversation finds or makes that of a request, nil when it belongs to none.
func (s *System) conversation(r bench.Request) *conversation {
	if r.Session == 0 {
		return nil
	}
	c := s.conversations[r.Session]
	if c == nil {
		c = &conversation{identity: s.identity(r)}
		s.conversations[r.Session] = c
	}
	return c
}

func (s *System) identity(r bench.Request) identity {
	own := r.Session ^ s.o.Salt
	if r.Parent == 0 {
		return identity{session: fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", own>>32, own>>16&0xffff, own>>4&0xfff, own&0xfff, s.o.Salt&0xffffffffffff)}
	}
	i := identity{agent: fmt.Sprintf("a%016x", own)}
	// The parent sent the turn that started this agent.
	if parent := s.conversations[r.Parent]; parent != nil {
		i.session, i.parentAgent = parent.session, parent.agent
	} else {
		i.session = s.identity(bench.Request{Session: r.Parent}).session
	}
	return i
}
