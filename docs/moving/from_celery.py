"""Tasks with a delay and retries: what countdown, eta and autoretry_for do in Celery."""

import os
import signal

from delayd.client import Client, Tasks

app = Tasks(Client(os.environ.get("DELAYD_URL", "http://127.0.0.1:11301")))


@app.task("mail", retry="1s 2s 5s", jitter_percent=10)
def remind(user: str) -> None:
    if app.job.attempt == 1:
        raise ConnectionError("the mail server is away")  # the ladder decides when it comes again
    print(f"sent the reminder to {user}, attempt {app.job.attempt}", flush=True)


def complain(error: BaseException, job: object) -> None:
    print(error, flush=True)  # without it, the log has the traceback


if __name__ == "__main__":
    with app.client:
        remind.put("ada", delay="1s", key="remind-ada")  # countdown=1, task_id="remind-ada"
        worker = app.worker(concurrency=8, on_error=complain)  # or: delayd worker from_celery:app
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()
