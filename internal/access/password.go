package access

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Rounds of PBKDF2-HMAC-SHA256, as OWASP's cheat sheet on password storage asks
// for (2023), and what is taken from a file.
const (
	rounds    = 600_000
	minRounds = 100_000
	maxRounds = 10_000_000
)

const passwordForm = "pbkdf2-sha256"

// Password is the hash of a password that a person chose. The zero Password
// stands for none: nobody has to log in.
type Password struct {
	rounds     int
	salt, hash string
}

// NewPassword hashes a password with a salt of its own. It fails on one that is
// shorter than eight characters.
func NewPassword(plain string) (Password, error) {
	if len([]rune(plain)) < 8 {
		return Password{}, errors.New("the password has fewer than 8 characters")
	}
	var salt [16]byte
	rand.Read(salt[:])
	return derive(plain, string(salt[:]), rounds)
}

func derive(plain, salt string, rounds int) (Password, error) {
	hash, err := pbkdf2.Key(sha256.New, plain, []byte(salt), rounds, sha256.Size)
	if err != nil {
		return Password{}, fmt.Errorf("hash the password: %w", err)
	}
	return Password{rounds, salt, string(hash)}, nil
}

// IsZero says that there is no password.
func (p Password) IsZero() bool { return p.rounds == 0 }

// Matches compares with what somebody typed, in a time that tells nothing but
// takes a tenth of a second.
func (p Password) Matches(plain string) bool {
	if p.IsZero() {
		return false
	}
	other, err := derive(plain, p.salt, p.rounds)
	return err == nil && subtle.ConstantTimeCompare([]byte(other.hash), []byte(p.hash)) == 1
}

// String is the form that UnmarshalText reads; empty for none. It holds no
// secret that could be used, but an attacker could try words against it.
func (p Password) String() string {
	if p.IsZero() {
		return ""
	}
	text := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("%s:%d:%s:%s", passwordForm, p.rounds, text([]byte(p.salt)), text([]byte(p.hash)))
}

// MarshalText writes what UnmarshalText reads.
func (p Password) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what warden keys password prints.
func (p *Password) UnmarshalText(text []byte) error {
	wrong := errors.New("this is not the hash of a password; write what warden keys password prints")
	parts := strings.Split(string(text), ":")
	if len(parts) != 4 || parts[0] != passwordForm {
		return wrong
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil || n < minRounds || n > maxRounds {
		return fmt.Errorf("the hash of the password has %s rounds; allowed are %d to %d", parts[1], minRounds, maxRounds)
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[2])
	if err != nil || len(salt) < 8 {
		return wrong
	}
	hash, err := base64.RawStdEncoding.DecodeString(parts[3])
	if err != nil || len(hash) != sha256.Size {
		return wrong
	}
	*p = Password{n, string(salt), string(hash)}
	return nil
}
