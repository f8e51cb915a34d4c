// Package beanstalk has the signatures of github.com/beanstalkd/go-beanstalk that docs/other-languages.md uses.
package beanstalk

import (
	"errors"
	"time"
)

type Conn struct{}

type Tube struct{}

type TubeSet struct{}

type ConnError struct {
	Conn *Conn
	Op   string
	Err  error
}

var ErrTimeout = errors.New("timeout")

func (e ConnError) Error() string { return e.Op }

func Dial(network, addr string) (*Conn, error) { return nil, nil }

func NewTube(c *Conn, name string) *Tube { return nil }

func NewTubeSet(c *Conn, name ...string) *TubeSet { return nil }

func (t *Tube) Put(body []byte, pri uint32, delay, ttr time.Duration) (id uint64, err error) { return }

func (t *TubeSet) Reserve(timeout time.Duration) (id uint64, body []byte, err error) { return }

func (c *Conn) Delete(id uint64) error { return nil }

func (c *Conn) Release(id uint64, pri uint32, delay time.Duration) error { return nil }

func (c *Conn) Bury(id uint64, pri uint32) error { return nil }

func (c *Conn) Close() error { return nil }
