package dbtest

import "runtime"

// launch starts the server. The returned channel is closed when the server has ended.
func (s *server) launch() (done chan struct{}, err error) {
	killWithParent(s.cmd)
	done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		// Linux sends the signal of killWithParent when the thread that started the server ends. So
		// this goroutine keeps its thread for as long as the server runs, and ends with it.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.err = s.cmd.Wait()
			close(done)
		}
	}()
	return done, <-started
}
