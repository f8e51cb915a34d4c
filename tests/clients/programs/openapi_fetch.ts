// What a client made by openapi-typescript does with a daemon, whose address is the argument.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] ?? "" });
const mail = { params: { path: { topic: "mail" } } };

function same(told: unknown, expected: unknown): void {
  if (told !== expected) throw new Error(`${String(told)} instead of ${String(expected)}`);
}

const put = await client.POST("/v1/topics/{topic}/jobs", { ...mail, body: { body: { to: "ada" }, key: "order-17" } });
same(put.response.status, 201);
const job: components["schemas"]["Put"] | components["schemas"]["PutResults"] | undefined = put.data;
if (job === undefined || !("id" in job)) throw new Error("no job was put");

const taken = await client.POST("/v1/topics/{topic}/jobs", { ...mail, body: { body: 1, key: "order-17" } });
const problem: components["schemas"]["Problem"] | undefined = taken.error;
same(problem?.status, 409);
same(problem?.kind, "job_already_exists");
same(problem?.job_id, job.id);
const wrong = await client.POST("/v1/topics/{topic}/jobs", { ...mail, body: { body: 1, delay: "soon" } });
same(wrong.error?.errors?.[0]?.field, "delay");

const reserved = await client.POST("/v1/topics/{topic}/reserve", { ...mail, body: {} });
const held = reserved.data?.jobs[0];
if (held === undefined) throw new Error("no job was reserved");
same(JSON.stringify(held.body), '{"to":"ada"}');
const acked = await client.POST("/v1/jobs/{id}/ack", {
  params: { path: { id: held.id } },
  body: { token: held.token },
});
same(acked.data?.id, job.id);

const later = await client.PUT("/v1/topics/{topic}/keys/{key}", {
  params: { path: { topic: "mail", key: "käse" } },
  body: { body_base64: "aGVsbG8=", delay: "1h", retry: ["15s", 180] },
});
const page = await client.GET("/v1/topics/{topic}/jobs", {
  params: { path: { topic: "mail" }, query: { state: "delayed", bodies: true } },
});
same(page.data?.jobs.length, 1);
same(page.data?.jobs[0]?.body_base64, "aGVsbG8=");
if (later.data === undefined) throw new Error("no job was put under a key");
const cancelled = await client.DELETE("/v1/jobs/{id}", { params: { path: { id: later.data.id } } });
same(cancelled.data?.id, later.data.id);
const gone = await client.GET("/v1/jobs/{id}", { params: { path: { id: later.data.id } } });
same(gone.error?.kind, "job_not_found");
