package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// loginFor is how long a login lasts without being used.
	loginFor = 12 * time.Hour
	// maxLogins bounds the table; the login that is unused longest ends first.
	maxLogins = 1000
	// Wrong passwords: so many at once, and one more every so often. The bound is
	// for all addresses together, since one machine has many.
	wrongAtOnce = 10
	wrongEvery  = 6 * time.Second
)

// ErrTooMany says that too many wrong passwords were tried.
var ErrTooMany = errors.New("too many wrong passwords; try again in a minute")

// ErrWrong says that a password is wrong.
var ErrWrong = errors.New("the password is wrong")

// Logins are the operators who are logged in. Safe for concurrent use.
type Logins struct {
	seal  [sha256.Size]byte // of this process
	wrong *rate.Limiter

	mu sync.Mutex
	// Guarded by mu.
	password Password
	tokens   map[[sha256.Size]byte]time.Time // when each was used last
	matched  [sha256.Size]byte               // the password that matched, sealed; zero before the first
}

// NewLogins begins with nobody logged in.
func NewLogins(p Password) *Logins {
	l := &Logins{
		password: p,
		tokens:   map[[sha256.Size]byte]time.Time{},
		wrong:    rate.NewLimiter(rate.Every(wrongEvery), wrongAtOnce),
	}
	rand.Read(l.seal[:])
	return l
}

// Required says whether anybody has to log in.
func (l *Logins) Required() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.password.IsZero()
}

// SetPassword ends every login when the password is another one.
func (l *Logins) SetPassword(p Password) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.password != p {
		l.password = p
		clear(l.tokens)
		l.matched = [sha256.Size]byte{}
	}
}

// Check compares a password that a program sends with each request. One that
// matched before costs no slow hash.
func (l *Logins) Check(now time.Time, plain string) error {
	sealed := l.sealed(plain)
	l.mu.Lock()
	password, known := l.password, hmac.Equal(l.matched[:], sealed[:])
	l.mu.Unlock()
	if known {
		return nil
	}
	// Taken before the comparison, so that many at once are no way around.
	try := l.wrong.ReserveN(now, 1)
	if try.DelayFrom(now) > 0 {
		try.CancelAt(now)
		return ErrTooMany
	}
	if !password.Matches(plain) {
		return ErrWrong
	}
	try.CancelAt(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.password == password {
		l.matched = sealed
	}
	return nil
}

// sealed is a digest that is worth nothing outside this process.
func (l *Logins) sealed(plain string) (d [sha256.Size]byte) {
	m := hmac.New(sha256.New, l.seal[:])
	m.Write([]byte(plain))
	return [sha256.Size]byte(m.Sum(nil))
}

// Open checks a password and begins a login. The token goes into a cookie; it is
// kept as a hash.
func (l *Logins) Open(now time.Time, plain string) (token string, err error) {
	if err := l.Check(now, plain); err != nil {
		return "", err
	}
	var b [32]byte
	rand.Read(b[:])
	token = base64.RawURLEncoding.EncodeToString(b[:])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	l.tokens[sha256.Sum256([]byte(token))] = now
	return token, nil
}

// sweep ends old logins, and the oldest one when there are too many. Callers hold
// mu.
func (l *Logins) sweep(now time.Time) {
	var oldest [sha256.Size]byte
	first := now
	for t, used := range l.tokens {
		switch {
		case now.Sub(used) > loginFor:
			delete(l.tokens, t)
		case !used.After(first):
			oldest, first = t, used
		}
	}
	if len(l.tokens) >= maxLogins {
		delete(l.tokens, oldest)
	}
}

// Valid says whether a token stands for a login, which then lasts anew.
func (l *Logins) Valid(now time.Time, token string) bool {
	d := sha256.Sum256([]byte(token))
	l.mu.Lock()
	defer l.mu.Unlock()
	used, ok := l.tokens[d]
	if !ok || now.Sub(used) > loginFor {
		delete(l.tokens, d)
		return false
	}
	l.tokens[d] = now
	return true
}

// Close ends a login.
func (l *Logins) Close(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tokens, sha256.Sum256([]byte(token)))
}
