// Package certs serves TLS certificates from files and reads them again when
// they change, so that a renewal needs no restart. It makes and orders none.
package certs

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookEvery is how long a certificate is served before its files are looked at
// again.
const lookEvery = 5 * time.Second

// Files is a certificate with its key. Safe for concurrent use.
type Files struct {
	certificate, key string
	log              *slog.Logger
	now              func() time.Time

	mu sync.Mutex
	// Guarded by mu.
	served  *tls.Certificate
	seen    [2]stamp
	looked  time.Time
	failing bool
}

// stamp tells a file's content from its former one, also when a link now points
// elsewhere.
type stamp struct {
	size int64
	at   time.Time
	id   os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.size == o.size && s.at.Equal(o.at) && (s.id == nil) == (o.id == nil) && (s.id == nil || os.SameFile(s.id, o.id))
}

// Open reads both files for the first time. The error names them.
func Open(certificate, key string, log *slog.Logger) (*Files, error) {
	f := &Files{certificate: certificate, key: key, log: log, now: time.Now}
	f.seen, f.looked = f.stamps(), f.now()
	var err error
	f.served, err = f.read()
	return f, err
}

func (f *Files) stamps() (s [2]stamp) {
	for i, path := range [...]string{f.certificate, f.key} {
		if info, err := os.Stat(path); err == nil {
			s[i] = stamp{info.Size(), info.ModTime(), info}
		}
	}
	return s
}

func (f *Files) read() (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.certificate, f.key, err)
	}
	return &c, nil
}

// Config is what a listener needs: TLS 1.2 or newer, HTTP/2 where the client can.
func (f *Files) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return f.current(), nil
		},
	}
}

// current is the certificate to serve. Files that cannot be read, as in the
// middle of their renewal, leave the former one in force.
func (f *Files) current() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Sub(f.looked) < lookEvery {
		return f.served
	}
	f.looked = now
	seen := f.stamps()
	if seen[0].same(f.seen[0]) && seen[1].same(f.seen[1]) {
		return f.served
	}
	c, err := f.read()
	if err != nil {
		if !f.failing {
			f.log.Error("the certificate changed and cannot be read: the former one is served", "error", err.Error())
		}
		f.failing = true // and looked at again, since what was seen last stays
		return f.served
	}
	f.served, f.seen, f.failing = c, seen, false
	f.log.Info("certificate read again", "file", f.certificate, "until", c.Leaf.NotAfter)
	return f.served
}
