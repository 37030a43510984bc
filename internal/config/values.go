package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// The types of this file read and write themselves as text, so that flags take
// the same values as the file.

// Duration is a span of time, always more than zero when it was read from text.
type Duration time.Duration

// D is the standard library's form.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String drops zero parts: 10m, not 10m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a number with its unit, as in 500ms, 30s, 10m or 1h30m.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not a duration; write a number above 0 with its unit: 500ms, 30s, 10m, 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// ByteSize is a number of bytes, always more than zero when it was read from
// text.
type ByteSize int64

// byteUnits go from large to small, so that the first that divides is the one
// to print.
var byteUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// String is exact: the largest unit that leaves no fraction.
func (b ByteSize) String() string {
	for _, u := range byteUnits {
		if int64(b)%u.bytes == 0 && b != 0 {
			return strconv.FormatInt(int64(b)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// MarshalText writes what UnmarshalText reads.
func (b ByteSize) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads a whole number with its unit, as in 64MiB.
func (b *ByteSize) UnmarshalText(text []byte) error {
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(string(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n <= 0 || n > (1<<62)/u.bytes {
			break
		}
		*b = ByteSize(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size; write a whole number above 0 with its unit: B, KiB, MiB or GiB, as in 64MiB", text)
}

// URL is the base address of an engine: scheme, host and maybe a path, without
// a trailing slash and without the API's /v1. The zero URL stands for none.
type URL struct{ base url.URL }

// URL is a copy in the standard library's form.
func (u URL) URL() *url.URL { c := u.base; return &c }

// IsZero says that there is no URL.
func (u URL) IsZero() bool { return u.base == url.URL{} }

// String is the address as it goes into logs and pages; it holds no password.
func (u URL) String() string { return u.base.String() }

// MarshalText writes what UnmarshalText reads.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads an address such as http://127.0.0.1:8000.
func (u *URL) UnmarshalText(text []byte) error {
	p, err := url.Parse(string(text))
	if err != nil {
		// The parser's error repeats the text, and with it a password.
		return errors.New("this is not a URL; write the engine's address, as in http://127.0.0.1:8000")
	}
	switch {
	case p.User != nil:
		return errors.New("a URL must not hold a user or a password; an engine's key goes into api_key")
	case (p.Scheme != "http" && p.Scheme != "https") || p.Hostname() == "":
		return fmt.Errorf("%q is not the address of an engine; write http:// or https:// with a host, as in http://127.0.0.1:8000", text)
	case p.RawQuery != "" || p.ForceQuery || p.Fragment != "":
		return fmt.Errorf("%q must not have a query or a fragment", text)
	}
	if port := p.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q has no valid port; allowed are 1 to 65535", text)
		}
	}
	// People paste what they give to clients.
	p.Path, p.RawPath = strings.TrimRight(strings.TrimSuffix(strings.TrimRight(p.Path, "/"), "/v1"), "/"), ""
	u.base = *p
	return nil
}

// Endpoint is the address of a ZeroMQ socket. The zero Endpoint stands for none.
type Endpoint struct {
	host string
	port int
}

// IsZero says that there is no endpoint.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// Address is HOST:PORT with the port of a rank, which count up from the first.
func (e Endpoint) Address(rank int) string {
	return net.JoinHostPort(e.host, strconv.Itoa(e.port+rank))
}

// String is the endpoint of the first rank.
func (e Endpoint) String() string {
	if e.IsZero() {
		return ""
	}
	return "tcp://" + e.Address(0)
}

// MarshalText writes what UnmarshalText reads.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads tcp://HOST:PORT.
func (e *Endpoint) UnmarshalText(text []byte) error {
	address, ok := strings.CutPrefix(string(text), "tcp://")
	host, port, err := net.SplitHostPort(address)
	n, bad := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(host, "*/@ \t") {
		return fmt.Errorf("%q is not the address of a socket; write tcp:// with the engine's host and a port from 1 to 65535, as in tcp://127.0.0.1:5557", text)
	}
	*e = Endpoint{host, int(n)}
	return nil
}

// SpillThreshold is a number of requests, or 0 for automatic.
type SpillThreshold int

// String is "auto" or the number.
func (s SpillThreshold) String() string {
	if s == 0 {
		return "auto"
	}
	return strconv.Itoa(int(s))
}

// MarshalText writes what UnmarshalText reads.
func (s SpillThreshold) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads "auto" or a whole number from 1.
func (s *SpillThreshold) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*s = 0
		return nil
	}
	n, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a spill threshold; write auto or a whole number from 1", text)
	}
	*s = SpillThreshold(n)
	return nil
}

// Patience is a duration, or 0 for automatic.
type Patience Duration

// D is the standard library's form.
func (p Patience) D() time.Duration { return time.Duration(p) }

// String is "auto" or the duration.
func (p Patience) String() string {
	if p == 0 {
		return "auto"
	}
	return Duration(p).String()
}

// MarshalText writes what UnmarshalText reads.
func (p Patience) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads "auto" or a duration.
func (p *Patience) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*p = 0
		return nil
	}
	if (*Duration)(p).UnmarshalText(text) != nil {
		return fmt.Errorf("%q is not a patience; write auto or a duration with its unit, as in 20s", text)
	}
	return nil
}

// Mask is what stands for a secret wherever one would be printed.
const Mask = "********"

// Secret is a password or a key: the text itself, file:PATH for the first line
// of a file, or env:NAME for an environment variable. It prints as Mask. The
// zero Secret stands for none.
type Secret struct{ ref string }

// NewSecret takes a literal or a reference.
func NewSecret(ref string) Secret { return Secret{ref} }

// IsZero says that there is no secret.
func (s Secret) IsZero() bool { return s.ref == "" }

// Reveal resolves the reference now, so that a changed file counts. The error
// names the file or the variable, never the secret.
func (s Secret) Reveal() (string, error) {
	var value string
	if path, ok := strings.CutPrefix(s.ref, "file:"); ok {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read the secret: %w", err)
		}
		value, _, _ = strings.Cut(string(text), "\n")
		value = strings.TrimSpace(value)
		if value == "" {
			return "", fmt.Errorf("the secret's file %s has an empty first line", path)
		}
	} else if name, ok := strings.CutPrefix(s.ref, "env:"); ok {
		if value = os.Getenv(name); value == "" {
			return "", fmt.Errorf("the secret's environment variable %s is not set", name)
		}
	} else {
		value = s.ref
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", errors.New("the secret holds a control character; it could not be sent in a header")
	}
	return value, nil
}

// String, GoString, LogValue and MarshalText all mask.
func (s Secret) String() string {
	if s.ref == "" {
		return ""
	}
	return Mask
}

func (s Secret) GoString() string             { return s.String() }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes a literal or a reference.
func (s *Secret) UnmarshalText(text []byte) error {
	switch string(text) {
	case "", "file:", "env:":
		return errors.New("the secret is empty; write it, file:PATH or env:NAME")
	case Mask:
		return errors.New("this is the mask of a printed configuration, not a secret; write it, file:PATH or env:NAME")
	}
	s.ref = string(text)
	return nil
}
