// Package access says who may ask for what: the API keys of clients with what
// each may take, what may be taken of each model, and the operator's password with
// the logins that it opened. It keeps hashes only. It knows neither routes nor
// pages: proxy and web ask it.
//
// Where to look: gate.go lets requests in, by keys.go and limits.go; password.go
// and login.go are the operator.
package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// keyPrefix tells a key of ours from others, for people and for scanners that
// look for leaked secrets.
const keyPrefix = "lmw_"

// NewKey draws an API key of 256 random bits. The hash goes into the
// configuration; the key itself is told once and kept nowhere.
func NewKey() (key string, hash KeyHash) {
	var b [32]byte
	rand.Read(b[:])
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	return key, HashKey(key)
}

// KeyHash is the SHA-256 of an API key. A key has 256 random bits, so that a slow
// hash would add nothing; for a word that a person chose see Password.
type KeyHash [sha256.Size]byte

// hashForm stands before the hash in a file.
const hashForm = "sha256:"

// HashKey hashes a key.
func HashKey(key string) KeyHash { return sha256.Sum256([]byte(key)) }

// String is the form that UnmarshalText reads.
func (h KeyHash) String() string { return hashForm + hex.EncodeToString(h[:]) }

// MarshalText writes what UnmarshalText reads.
func (h KeyHash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads sha256: and 64 hexadecimal digits.
func (h *KeyHash) UnmarshalText(text []byte) error {
	digits, ok := strings.CutPrefix(string(text), hashForm)
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != len(h) {
		// The text itself may be a key that was put here by mistake.
		return fmt.Errorf("this is not the hash of a key; write %s and 64 hexadecimal digits, as warden keys new prints it", hashForm)
	}
	copy(h[:], b)
	return nil
}
