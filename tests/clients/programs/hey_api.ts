// What a client made by @hey-api/openapi-ts does with a daemon, whose address is the argument.
import type { Problem, Put, PutResults } from "./hey";
import { ack, cancelJob, getJob, listJobs, putJob, putJobByKey, reserve } from "./hey";
import { client } from "./hey/client.gen";

declare const process: { argv: string[] };

client.setConfig({ baseUrl: process.argv[2] ?? "" });
const mail = { path: { topic: "mail" } };

function same(told: unknown, expected: unknown): void {
  if (told !== expected) throw new Error(`${String(told)} instead of ${String(expected)}`);
}

async function work(): Promise<void> {
  const put = await putJob({ ...mail, body: { body: { to: "ada" }, key: "order-17" } });
  const job: Put | PutResults | undefined = put.data;
  if (job === undefined || !("id" in job)) throw new Error("no job was put");

  const taken = await putJob({ ...mail, body: { body: 1, key: "order-17" } });
  const problem: Problem | undefined = taken.error;
  same(problem?.status, 409);
  same(problem?.kind, "job_already_exists");
  same(problem?.job_id, job.id);
  const wrong = await putJob({ ...mail, body: { body: 1, delay: "soon" } });
  same(wrong.error?.errors?.[0]?.field, "delay");

  const reserved = await reserve({ ...mail, body: {} });
  const held = reserved.data?.jobs[0];
  if (held === undefined) throw new Error("no job was reserved");
  same(JSON.stringify(held.body), '{"to":"ada"}');
  const acked = await ack({ path: { id: held.id }, body: { token: held.token } });
  same(acked.data?.id, job.id);

  const later = await putJobByKey({
    path: { topic: "mail", key: "käse" },
    body: { body_base64: "aGVsbG8=", delay: "1h", retry: ["15s", 180] },
  });
  const page = await listJobs({ ...mail, query: { state: "delayed", bodies: true } });
  same(page.data?.jobs.length, 1);
  same(page.data?.jobs[0]?.body_base64, "aGVsbG8=");
  if (later.data === undefined) throw new Error("no job was put under a key");
  const cancelled = await cancelJob({ path: { id: later.data.id } });
  same(cancelled.data?.id, later.data.id);
  const gone = await getJob({ path: { id: later.data.id } });
  same(gone.error?.kind, "job_not_found");
}

void work();
