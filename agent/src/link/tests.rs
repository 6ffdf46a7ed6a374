use super::*;

fn refused(code: tonic::Code) -> Result<Ended, SessionError> {
    Err(SessionError::Refused(Box::new(tonic::Status::new(code, "no"))))
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn fast_then_slow_by_time_however_long_attempts_take() {
    let began = Instant::now();
    let mut pace = Pace::new(began);
    // Attempts of 10 s each: the slow phase begins after the third, not after the thirtieth.
    let waits: Vec<Duration> = (1..6)
        .map(|attempt| {
            let now = began + attempt * 10 * SECOND;
            pace.wait(&Err(SessionError::NoHelloInTime), now - 10 * SECOND, now, 1.0)
        })
        .collect();
    assert!(waits[..2].iter().all(|wait| *wait < SECOND), "{waits:?}");
    assert!(waits[2..].iter().all(|wait| *wait == 30 * SECOND), "{waits:?}");
    // At the cap the draw still decides.
    assert!(pace.wait(&refused(tonic::Code::Internal), began, began + 60 * SECOND, 0.5) == 15 * SECOND);
}

#[test]
fn a_good_session_begins_anew_and_a_short_one_does_not() {
    let began = Instant::now();
    let mut pace = Pace::new(began);
    let late = began + 100 * SECOND;
    assert_eq!(pace.wait(&refused(tonic::Code::Internal), late, late, 1.0), 30 * SECOND);
    assert_eq!(pace.wait(&Ok(Ended::Broke), late, late + 9 * SECOND, 1.0), 30 * SECOND);
    assert!(pace.wait(&Ok(Ended::Broke), late, late + 10 * SECOND, 1.0) < SECOND);
}

#[test]
fn a_taken_name_is_slow_at_once() {
    let began = Instant::now();
    assert_eq!(Pace::new(began).wait(&refused(tonic::Code::AlreadyExists), began, began, 1.0), 30 * SECOND);
}

#[test]
fn sent_elsewhere_it_goes_at_once_but_not_in_a_busy_loop() {
    let began = Instant::now();
    let mut pace = Pace::new(began);
    assert_eq!(pace.wait(&Ok(Ended::Elsewhere), began, began + SECOND, 1.0), Duration::ZERO);
    assert!(pace.wait(&Ok(Ended::Elsewhere), began, began, 1.0) > Duration::ZERO);
}
